"""Every backend that runs here through the contract, a third party's by its entry point, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy
from contract import check_contract, check_response, same_bits

from nondet.backends.base import Backend, Request, Response
from nondet.backends.candidates import RAW_LOGPROBS
from nondet.backends.fillers import with_fillers
from nondet.backends.hf import LOGPROBS_MODE, HFBackend
from nondet.settings import setting_from

REQUESTS = [Request(f"i{n}", tuple(range(3, 7 + 2 * n)), seed=n) for n in range(4)]

THIRD_PARTY = """
from contract import check_contract
from nondet.backends.base import Request, backend_class
from nondet.settings import setting_from

requests = [Request(f"i{n}", (1, 2, n), seed=n) for n in range(5)]
for name in ("toy", "stateful_toy"):
    cls = backend_class(name)
    assert cls.__module__ == "nondet_toy", cls
    setting = setting_from({"backend": {"name": name}, "max_new_tokens": 8})
    cls.check(setting)
    check_contract(lambda: cls(setting, "none"), requests)
    print(name, "kept the contract")
"""


def test_hf(tiny: Path) -> None:
    values = {"max_new_tokens": 8, "dtype": "fp32", "threads": 1, "top_k": 3}
    check_contract(lambda: HFBackend(setting_from(values), str(tiny)), REQUESTS)


def test_a_third_party_backend_found_by_its_entry_point() -> None:
    paths = [str(toy.ROOT / "tests"), str(toy.PLUGIN), str(toy.ROOT)]
    done = subprocess.run(
        [sys.executable, "-c", THIRD_PARTY],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = [line for line in done.stdout.splitlines() if "contract" in line]
    assert kept == ["toy kept the contract", "stateful_toy kept the contract"]


def test_all_backends_mean_the_same_by_a_raw_logprob() -> None:
    assert LOGPROBS_MODE == RAW_LOGPROBS


class Broken(Backend):
    """Keeps the contract until told otherwise; ``fault`` breaks one clause of it."""

    name = "broken"
    fault = ""
    calls = 0

    def start(self) -> None:
        return

    def observed(self) -> dict[str, str]:
        return {"logprobs_mode": "none"}

    def generate(self, wave: list[Request]) -> list[Response]:  # type: ignore[override]
        Broken.calls += 1
        answers = [self.one(request) for request in wave]
        if self.fault == "order":
            return answers[::-1]
        if self.fault == "empty" and not wave:
            return [self.one(REQUESTS[0])]
        return answers

    def one(self, request: Request) -> Response:
        tokens = np.arange(4, dtype=np.int32)
        top = np.tile(np.float32([-1, -2, -3]), (4, 1))
        ids = np.stack([tokens, tokens + 1, tokens + 2], axis=1).astype(np.int32)
        if self.fault == "again":
            top = top - np.float32(Broken.calls)
        logprobs = top[:, 0].copy()
        reason = "length"
        if self.fault == "candidates":
            ids, top = ids[:, ::-1].copy(), top[:, ::-1].copy()
        elif self.fault == "twice":
            ids[:, 2] = ids[:, 1]
        elif self.fault == "kind":
            tokens = tokens.astype(np.int64)  # type: ignore[assignment]
        elif self.fault == "shape":
            top = top[:, :2]
        elif self.fault == "reason":
            reason = "done"
        elif self.fault == "short":
            tokens, logprobs, ids, top = tokens[:2], logprobs[:2], ids[:2], top[:2]
        elif self.fault == "no_end":
            tokens, logprobs, ids, top = tokens[:0], logprobs[:0], ids[:0], top[:0]
            reason = "stop"
        elif self.fault == "greedy":
            logprobs = logprobs - np.float32(1)
        elif self.fault == "gap":
            ids[:, 0], top[:, 0] = -1, np.nan
        return Response(request.item_id, tokens, logprobs, ids, top, reason, "text")


FAULTS = ["order", "empty", "again", "candidates", "twice", "kind", "shape", "reason", "short"]


@pytest.mark.parametrize("fault", ["", *FAULTS, "no_end", "greedy", "gap"])
def test_the_contract_finds_each_broken_clause(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "fault", fault)
    setting = setting_from({"max_new_tokens": 4, "top_k": 3})

    def run() -> None:
        check_contract(lambda: Broken(setting, ""), REQUESTS)

    if fault:
        with pytest.raises((AssertionError, IndexError)):
            run()
    else:
        run()


def test_a_needle_keeps_its_request_and_fillers_repeat() -> None:
    wave, place = with_fillers(REQUESTS[1], 31, seed=5)
    again, same_place = with_fillers(REQUESTS[1], 31, seed=5)
    assert (wave, place) == (again, same_place)
    assert wave[place] is REQUESTS[1]
    assert len({request.item_id for request in wave}) == 32
    assert all(4 <= len(r.prompt_tokens) <= 96 for n, r in enumerate(wave) if n != place)
    other, _ = with_fillers(REQUESTS[1], 31, seed=6)
    assert other != wave
    places = {with_fillers(r, 31, seed)[1] for r in REQUESTS for seed in range(8)}
    assert len(places) > 10


def test_same_bits_sees_one_bit() -> None:
    setting = setting_from({"max_new_tokens": 4, "top_k": 3})
    a, b = (Broken(setting, "").one(REQUESTS[0]) for _ in range(2))
    assert same_bits(a, b)
    check_response(a, REQUESTS[0], 3, 4)
    b.logprobs[2] = np.nextafter(b.logprobs[2], np.float32(0))
    assert not same_bits(a, b)
