"""Background load: a bounded stream of fillers, and a record of what it was beside."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import islice

import pytest
from processes import LONG_S, wait_for

from nondet.backends.load import BackgroundLoad, Filler, LoadPlan, fillers

PLAN = LoadPlan(rate=500.0, words=6, tokens=3, in_flight=2, seed=1)


def end(load: BackgroundLoad) -> dict[str, int]:
    """Stop when no filler is open: one that waits for its thread would be left out of the sum."""
    load._stopped.set()
    load._thread.join()
    wait_for(lambda: not load._open["filler"])
    return load.stop()


class Held:
    """A server that keeps every filler open until it is let go."""

    def __init__(self) -> None:
        self.go, self.lock = threading.Event(), threading.Lock()
        self.open = self.most = 0

    def __call__(self, filler: Filler) -> None:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
        assert self.go.wait(LONG_S)
        with self.lock:
            self.open -= 1


def test_the_stream_is_the_seeds_and_within_its_bounds() -> None:
    first, again = (list(islice(fillers(PLAN), 300)) for _ in range(2))
    assert first == again
    assert first != list(islice(fillers(replace(PLAN, seed=2)), 300))
    assert {len(filler.prompt.split()) for filler in first} == set(range(1, 7))
    assert {filler.tokens for filler in first} == {1, 2, 3}
    mean = sum(filler.gap_s for filler in first) / 300
    assert mean == pytest.approx(1 / 500, rel=0.3)


def test_a_server_that_cannot_carry_the_rate_gets_fewer() -> None:
    held = Held()
    load = BackgroundLoad(held, PLAN)
    load.start()
    wait_for(lambda: load.counts()["left_out"] >= 5 and held.most == 2)
    before = load.counts()
    assert (before["sent"], before["answered"], held.most) == (2, 0, 2)
    held.go.set()
    wait_for(lambda: load.counts()["sent"] > 2)
    after = end(load)
    assert held.most <= 2
    assert after["sent"] == after["answered"]
    assert after["failed"] == after["overlapping"] == after["measured_beside"] == 0


@pytest.mark.parametrize("filler_first", [True, False])
def test_what_overlapped_is_counted_on_both_sides(filler_first: bool) -> None:
    held = Held()
    load = BackgroundLoad(held, replace(PLAN, in_flight=1))
    if filler_first:
        load.start()
        wait_for(lambda: held.open == 1)
    with load.measured():
        if not filler_first:
            load.start()
            wait_for(lambda: held.open == 1)
    # Let go when nothing more is sent, the filler is the only one.
    threading.Thread(target=lambda: (load._thread.join(), held.go.set())).start()
    counts = load.stop()
    assert (counts["sent"], counts["answered"]) == (1, 1)
    assert (counts["overlapping"], counts["measured_beside"]) == (1, 1)


def test_a_measured_request_alone_counts_as_alone() -> None:
    load = BackgroundLoad(lambda filler: None, PLAN)
    with load.measured():
        pass
    load.start()
    wait_for(lambda: load.counts()["answered"] >= 3)
    counts = load.stop()
    assert counts["overlapping"] == counts["measured_beside"] == 0


def test_a_filler_that_still_waits_for_a_thread_is_sent_when_the_load_stops() -> None:
    load, busy = BackgroundLoad(lambda filler: None, replace(PLAN, in_flight=1)), threading.Event()
    load._pool.submit(busy.wait)
    load.start()
    wait_for(lambda: load.counts()["sent"] == 1)
    threading.Thread(target=lambda: (load._thread.join(), time.sleep(0.1), busy.set())).start()
    counts = load.stop()
    assert (counts["sent"], counts["answered"]) == (1, 1)


def test_a_filler_that_fails_is_counted_and_is_no_load() -> None:
    def refuse(filler: Filler) -> None:
        raise OSError("no connection")

    load = BackgroundLoad(refuse, PLAN)
    with load.measured():
        load.start()
        wait_for(lambda: load.counts()["failed"] >= 3)
    counts = end(load)
    assert (counts["answered"], counts["overlapping"]) == (0, 0)
    assert counts["failed"] == counts["sent"]
