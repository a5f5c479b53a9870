"""A worker whose tokens are 100 + request, 101 + request, ...; options: "crash_at", "hang_at", "refuse_at" a step."""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.peers.worker import Worker
from bench.peers.workers.serve import serve

REPOSITORY = Path(__file__).parents[3]


class Fake:
    """An engine that takes one step per prompt; every request past its prompt returns one token per step."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        if model == "broken":
            raise ValueError("the model is broken")
        self._options = options
        self._waiting: list[int] = []
        self._counts: dict[int, int] = {}  # request -> its number of tokens
        self._steps = 0

    def submit(self, prompts: list[list[int]]) -> None:
        self._waiting = list(range(len(prompts)))
        self._counts = {}

    def step(self) -> Iterable[tuple[int, int]]:
        self._steps += 1
        self._misbehave()
        if self._waiting:
            self._counts[self._waiting.pop(0)] = 0
        for request in self._counts:
            self._counts[request] += 1
        return [(request, 99 + request + count) for request, count in self._counts.items()]

    def drop(self, requests: Iterable[int]) -> None:
        for request in requests:
            del self._counts[request]

    def facts(self) -> Mapping[str, Any]:
        return {"version": "1", "cache_bytes": 7}

    def _misbehave(self) -> None:
        if self._steps == self._options.get("crash_at"):
            os.abort()
        if self._steps == self._options.get("hang_at"):
            time.sleep(60)
        if self._steps == self._options.get("refuse_at"):
            raise ValueError("no more")


def start(folder: Path) -> Worker:
    return Worker([sys.executable, "-m", "tests.bench.peers.fake"], folder / "fake.log", 1, REPOSITORY)


def load(model: str, options: Mapping[str, Any]) -> Fake:
    print("output of libraries does not reach the replies", flush=True)
    return Fake(model, options)


if __name__ == "__main__":
    serve(load)
