"""A third-party backend for the tests: no engine, tokens from a hash, faults on demand."""

import hashlib
import os
import signal
import time
from pathlib import Path

import numpy as np

from nondet.backends.base import Backend, Response
from nondet.settings import SettingError

OPTIONS = {"pause": 0.0, "fault": None, "fault_size": 0, "stateful": False}


class ToyBackend(Backend):
    """Answers depend on the item alone, or also on the batch size where ``drift`` is asked for.

    ``fault`` (memory, error, exit, killed, hang, wrong_items, shapes, cut) strikes in the third
    wave of runs whose batch size is ``fault_size``.
    """

    name = "toy"

    @classmethod
    def packages(cls):
        return ("numpy",)

    @classmethod
    def check(cls, setting):
        for key, value in setting.backend.options.items():
            if key not in (*OPTIONS, "drift", "log"):
                raise SettingError(f"backend.{key}", value, "left out")

    def option(self, name):
        return self.setting.backend.options.get(name, OPTIONS.get(name))

    def start(self):
        self.waves = 0
        print("toy engine started")

    def observed(self):
        return {"logprobs_mode": "toy"}

    def close(self):
        if self.option("fault") == "teardown":
            os.kill(os.getpid(), signal.SIGSEGV)

    def generate(self, wave):
        time.sleep(float(self.option("pause")))
        self.waves += 1
        if log := self.option("log"):
            with Path(str(log)).open("a") as file:
                file.write(" ".join(request.item_id for request in wave) + "\n")
        if self.waves == 3 and self.setting.batch_size == self.option("fault_size"):
            self.strike(str(self.option("fault")))
        responses = [self.answer(request) for request in wave]
        if self.waves == 3 and self.setting.batch_size == self.option("fault_size"):
            if self.option("fault") == "wrong_items":
                return responses[::-1][1:]
            if self.option("fault") == "shapes":
                responses[0].logprobs = responses[0].logprobs[:-1]
            if self.option("fault") == "cut":
                responses[0].finish_reason, responses[0].note = "error", "cut by the toy"
        return responses

    def strike(self, fault):
        if fault == "memory":
            raise MemoryError("the toy ran out of memory")
        if fault == "error":
            raise RuntimeError("the toy broke\nsecond line")
        if fault == "exit":
            os._exit(3)
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(3600)

    def answer(self, request):
        drift = self.setting.batch_size if self.option("drift") else 0
        seed = hashlib.sha256(f"{request.item_id} {drift} {request.seed}".encode()).digest()
        rng = np.random.default_rng(list(seed[:8]))
        k = self.setting.top_k
        length = int(rng.integers(1, self.setting.max_new_tokens + 1))
        ids = rng.permuted(np.tile(np.arange(99, dtype=np.int32), (length, 1)), axis=1)[:, :k]
        ids = np.ascontiguousarray(ids)
        top = np.sort(-rng.exponential(1, (length, k)))[:, ::-1].astype(np.float32)
        reason = "length" if length == self.setting.max_new_tokens else "stop"
        text = " ".join(str(token) for token in ids[:, 0])
        return Response(request.item_id, ids[:, 0].copy(), top[:, 0].copy(), ids, top, reason, text)


class StatefulToyBackend(ToyBackend):
    """The same with state between waves, as an engine with a prefix cache has it."""

    name = "stateful_toy"
    stateful = True
