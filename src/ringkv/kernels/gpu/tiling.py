"""Tiling: how decode attention is divided for a GPU. It is a formula of fixed shapes: nothing is autotuned at start."""

from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2

import torch
import triton
from torch import Tensor

MIN_ROWS, MAX_ROWS = 16, 32  # queries of one program; tensor cores need at least 16 rows and columns
TILE_BYTES = 32 << 10  # of keys and values that a program loads at a time
STAGES = 3
WARPS = {2: 4, 4: 8}  # by bytes of an element: float32 does not use tensor cores and needs more registers
RESERVED_BYTES = 1 << 10  # shared memory that CUDA reserves per program
MOST_SPLITS = 256
WGMMA_ROWS = 64
START = 64  # launch overhead of a program, in entries that it could read in that time


@dataclass(frozen=True)
class Chip:
    processors: int  # streaming multiprocessors
    shared_bytes: int  # shared memory of each
    major: int  # of its compute capability


@dataclass(frozen=True)
class Tile:
    """The queries that one program multiplies at a time, padded to the sizes of tensor cores."""

    rows: int  # queries
    columns: int  # head_dim
    itemsize: int  # bytes of an element
    planes: int = 2  # keys and values; 1 if they are the same elements
    stored: int | None = None  # bytes of an encoded vector and its scale; None if elements are stored as they are
    is_decoded: bool = False  # an encoded tile is copied to registers, and its elements back to shared memory

    @property
    def row_bytes(self) -> int:
        return self.columns * self.itemsize if self.stored is None else self.stored


def tile(q: Tensor) -> Tile:
    """Return the tile of queries [B, H, Q, D] that one program processes, padded to powers of two."""
    rows, columns = (max(MIN_ROWS, int(triton.next_power_of_2(n))) for n in q.shape[2:])
    return Tile(min(rows, MAX_ROWS), columns, q.element_size())


@dataclass(frozen=True)
class Tiling:
    """Number of splits of a slot's live entries, and how one program processes its split."""

    splits: int
    block: int  # entries a tile
    warps: int
    stages: int  # of the pipeline that loads tiles

    def shared_bytes(self, tile: Tile) -> int:
        """Return a program's shared memory: tiles of keys and values in flight, the queries and their weights.

        Products of WGMMA_ROWS queries read a tile there while the next ones are loaded, others copy it to registers.
        """
        in_flight = self.stages if tile.rows >= WGMMA_ROWS and not tile.is_decoded else self.stages - 1
        loaded = in_flight * tile.planes * self.block * tile.row_bytes
        decoded = self.block * tile.columns * tile.itemsize if tile.is_decoded else 0
        return loaded + decoded + tile.rows * (tile.columns + self.block) * tile.itemsize + RESERVED_BYTES


H100 = Chip(132, 228 << 10, 9)


@cache
def chip(device: torch.device) -> Chip:
    """Return the properties of a CUDA device; for the CPU, where Triton's interpreter runs, those of an H100."""
    if device.type != "cuda":
        return H100
    properties = torch.cuda.get_device_properties(device)
    return Chip(properties.multi_processor_count, properties.shared_memory_per_multiprocessor, properties.major)


@cache
def tiling(programs: int, capacity: int, tile: Tile, on: Chip) -> Tiling:
    """Return the tiling for so many programs per split (rows times key-value heads) of `capacity` entries each."""
    block = 1 << ceil(log2(TILE_BYTES / (tile.planes * tile.row_bytes)))
    program = Tiling(1, max(16, block), WARPS[tile.itemsize], STAGES)
    return split(program, programs, capacity, tile, on)


def split(program: Tiling, programs: int, capacity: int, tile: Tile, on: Chip) -> Tiling:
    """Return a tiling with the number of splits that so many programs per split need to fill the GPU."""
    at_once = max(1, on.shared_bytes // program.shared_bytes(tile)) * on.processors
    return replace(program, splits=_splits(programs, capacity, program.block, at_once))


def _splits(programs: int, capacity: int, block: int, at_once: int) -> int:
    """Return the number of splits with the lowest estimated time, if `at_once` programs run concurrently."""

    def cost(splits: int) -> int:
        width = ceil(ceil(capacity / splits) / block) * block
        return ceil(programs * splits / at_once) * (width + START)

    return min(range(1, min(MOST_SPLITS, max(1, capacity // block)) + 1), key=cost)
