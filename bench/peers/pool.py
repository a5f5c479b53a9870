"""pool: the live workers. An idle worker stays stopped in memory for later use while memory allows."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.worker import Worker, WorkerFailed
from ringkv.plan.memory import available_bytes

RESERVE = 1 << 30  # bytes left to other processes

Start = Callable[[str, str], Worker]
"""Starts a process for (engine's name, worker's module)."""


@dataclass
class Loaded:
    """A worker with a loaded model."""

    engine: str
    worker: Worker
    start_s: float
    facts: dict[str, Any]
    busy: bool = False
    used: float = field(default_factory=time.monotonic)


class Pool:
    """Workers by engine and options. Busy workers have requests and are never ended to free memory."""

    def __init__(self, start: Start, timeout: float, available: Callable[[], int] | None = None) -> None:
        self._start, self._timeout = start, timeout
        self._available = available or available_bytes
        self._loaded: dict[str, Loaded] = {}

    def take(self, engine: str, module: str, model: Path, options: dict[str, Any], need: int) -> tuple[Loaded, bool]:
        """Return a worker that accepts requests, and whether it was started now. need: its peak bytes.

        Raises WorkerFailed if it does not start, or if memory is short beside the busy workers.
        """
        key = json.dumps([engine, str(model), options], sort_keys=True)
        loaded = self._loaded.get(key)
        is_new = loaded is None or not loaded.worker.alive
        if loaded is None or is_new:
            if loaded:
                self.discard(loaded)
            self._free_memory(need)
            loaded = self._loaded[key] = self._load(engine, module, model, options)
        assert not loaded.busy
        loaded.busy, loaded.used = True, time.monotonic()
        return loaded, is_new

    def give_back(self, loaded: Loaded) -> None:
        loaded.busy, loaded.used = False, time.monotonic()

    def discard(self, loaded: Loaded) -> None:
        """End a worker that failed or is not needed again."""
        loaded.worker.kill()
        self._loaded = {key: other for key, other in self._loaded.items() if other is not loaded}

    def close(self) -> None:
        for loaded in list(self._loaded.values()):
            self.discard(loaded)

    def _load(self, engine: str, module: str, model: Path, options: dict[str, Any]) -> Loaded:
        worker = self._start(engine, module)
        try:
            reply = worker.call("load", self._timeout, model=str(model), options=options)
        except BaseException:
            worker.kill()
            raise
        return Loaded(engine, worker, time.perf_counter() - worker.started, reply["facts"])

    def _free_memory(self, need: int) -> None:
        """End idle workers, least recently used first, until `need` bytes are free."""
        idle = (loaded for loaded in self._loaded.values() if not loaded.busy)
        for loaded in sorted(idle, key=lambda loaded: loaded.used):
            if self._available() >= need + RESERVE:
                return
            self.discard(loaded)
        if (free := self._available()) < need + RESERVE:
            raise WorkerFailed(f"needs about {need / 1e9:.1f} GB and {max(0, free - RESERVE) / 1e9:.1f} GB are free")
