"""Tiling: how decode attention is cut up for a chip. A formula of fixed shapes, so that nothing is timed at start.

rows: slots times key-value heads.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

import torch

TILE_BYTES = 16 << 10  # of keys, and as many of values: what a program loads at a time
STAGES = 3
SHARED_BYTES = 75 << 10  # what a program takes with these, as compiled
MOST_SPLITS = 256
START = 64  # entries that could be read in the time that a program takes to begin and end


@dataclass(frozen=True)
class Chip:
    processors: int  # streaming multiprocessors
    shared_bytes: int  # shared memory of each


@dataclass(frozen=True)
class Tiling:
    """Splits of a slot's live entries, and how one program walks through its split."""

    splits: int
    block: int  # entries a tile
    warps: int
    stages: int  # of the pipeline that loads tiles


H100 = Chip(132, 228 << 10)


@cache
def chip(device: torch.device) -> Chip:
    """The facts of a CUDA device; an H100's for the CPU, where Triton's interpreter runs."""
    if device.type != "cuda":
        return H100
    facts = torch.cuda.get_device_properties(device)
    return Chip(facts.multi_processor_count, facts.shared_memory_per_multiprocessor)


@cache
def tiling(rows: int, capacity: int, row_bytes: int, on: Chip) -> Tiling:
    """For planes of `rows` x `capacity` entries of `row_bytes` each."""
    block = max(16, TILE_BYTES // row_bytes)
    at_once = max(1, on.shared_bytes // SHARED_BYTES) * on.processors
    return Tiling(_splits(rows, capacity, block, at_once), block, warps=4, stages=STAGES)


def _splits(rows: int, capacity: int, block: int, at_once: int) -> int:
    """The number whose programs, `at_once` of them at a time, are done first."""

    def cost(splits: int) -> int:
        width = ceil(ceil(capacity / splits) / block) * block
        return ceil(rows * splits / at_once) * (width + START)

    return min(range(1, min(MOST_SPLITS, max(1, capacity // block)) + 1), key=cost)
