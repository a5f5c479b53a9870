"""clock: times by CUDA events on a device, and by the host's clock on the CPU."""

import time
from collections.abc import Callable
from statistics import median

import torch


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int, laps: int = 5) -> float:
    """Return one call's seconds: the median over `laps` of `repeats` calls in a row, after a warm-up call."""
    work()
    return median(_lap(work, device, repeats) for _ in range(laps)) / repeats


def _lap(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
