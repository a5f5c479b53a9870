"""Tiling: how decode attention is cut up for a chip. A formula of fixed shapes, so that nothing is timed at start."""

from dataclasses import dataclass, replace
from functools import cache
from math import ceil

import torch

TILE_BYTES = 16 << 10  # of keys, and as many of values: what a program loads at a time
STAGES = 3
WARPS = {2: 4, 4: 8}  # by bytes of an element: float32 is multiplied without tensor cores, in more registers
RESERVED_BYTES = 1 << 10  # shared memory that the system takes of each program
MOST_SPLITS = 256
START = 64  # entries that could be read in the time that a program takes to begin and end


@dataclass(frozen=True)
class Chip:
    processors: int  # streaming multiprocessors
    shared_bytes: int  # shared memory of each


@dataclass(frozen=True)
class Tile:
    """What one program multiplies at a time, padded to what tensor cores take."""

    rows: int  # queries
    columns: int  # head_dim
    itemsize: int  # bytes of an element

    @property
    def row_bytes(self) -> int:
        return self.columns * self.itemsize


@dataclass(frozen=True)
class Tiling:
    """Splits of a slot's live entries, and how one program walks through its split."""

    splits: int
    block: int  # entries a tile
    warps: int
    stages: int  # of the pipeline that loads tiles

    def shared_bytes(self, tile: Tile) -> int:
        """Of a program: the tiles of keys and values that are on their way, the queries, their weights."""
        loaded = (self.stages - 1) * 2 * self.block * tile.row_bytes
        return loaded + tile.rows * (tile.columns + self.block) * tile.itemsize + RESERVED_BYTES


H100 = Chip(132, 228 << 10)


@cache
def chip(device: torch.device) -> Chip:
    """The facts of a CUDA device; an H100's for the CPU, where Triton's interpreter runs."""
    if device.type != "cuda":
        return H100
    facts = torch.cuda.get_device_properties(device)
    return Chip(facts.multi_processor_count, facts.shared_memory_per_multiprocessor)


@cache
def tiling(programs: int, capacity: int, tile: Tile, on: Chip) -> Tiling:
    """For so many programs without splits (rows of a step times key-value heads), of `capacity` entries each."""
    one = Tiling(1, max(16, TILE_BYTES // tile.row_bytes), WARPS[tile.itemsize], STAGES)
    at_once = max(1, on.shared_bytes // one.shared_bytes(tile)) * on.processors
    return replace(one, splits=_splits(programs, capacity, one.block, at_once))


def _splits(programs: int, capacity: int, block: int, at_once: int) -> int:
    """The number whose programs, `at_once` of them at a time, are done first."""

    def cost(splits: int) -> int:
        width = ceil(ceil(capacity / splits) / block) * block
        return ceil(programs * splits / at_once) * (width + START)

    return min(range(1, min(MOST_SPLITS, max(1, capacity // block)) + 1), key=cost)
