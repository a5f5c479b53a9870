"""Probe: how fast this machine reads memory, the ceiling of every decode step.

Neighbours on the same host make it drift, so it is measured between the rounds of a benchmark and the best is taken.
"""

import time
from collections.abc import Callable

import torch

MATRIX_BYTES = 256 << 20  # far more than the processor's caches hold
PROBE_BYTES = 2 * MATRIX_BYTES
REPEATS = 3
WIDTH = 4096


class Probe:
    """Three ways to stream through memory; `best` is the fastest seen so far, in bytes a second."""

    def __init__(self, device: torch.device, size: int = MATRIX_BYTES) -> None:
        matrix = torch.ones(size // (2 * WIDTH), WIDTH, dtype=torch.bfloat16, device=device)
        vector = torch.ones(WIDTH, dtype=torch.bfloat16, device=device)
        numbers, copied = matrix.view(torch.float32), torch.empty_like(matrix)
        self._device = device
        self._ways: tuple[tuple[int, Callable[[], object]], ...] = (
            (size, lambda: torch.mv(matrix, vector)),  # as a decode step reads its weights
            (size, lambda: numbers.sum()),
            (2 * size, lambda: copied.copy_(matrix)),  # read, and written
        )
        self.best = 0.0

    def run(self) -> None:
        for size, way in self._ways:
            for _ in range(REPEATS):
                self.best = max(self.best, size / seconds(way, self._device))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes, to the end of what it started on the device."""
    _settle(device)
    started = time.perf_counter()
    work()
    _settle(device)
    return time.perf_counter() - started


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
