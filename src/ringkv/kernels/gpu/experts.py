"""experts on CUDA: two grouped GEMMs and a sum in Triton. Shapes and launches do not depend on the router's top-k.

M rows, E experts, K chosen for each row, H hidden elements, I intermediate elements. A row's result depends on
the row and on fixed shapes alone. So is the tiling: nothing is autotuned at start.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.gpu.expert_products import ACTIVATIONS, down_tile, gated_tile, sum_experts
from ringkv.kernels.gpu.sort_by_expert import sort_by_expert
from ringkv.kernels.gpu.tiling import RESERVED_BYTES, WARPS, Chip, chip

SUM_COLUMNS = 512  # elements that one program of the sum adds
MIN_ROWS, MAX_ROWS = 16, 128  # tensor cores need at least 16 rows and columns
COLUMNS = (256, 128, 64, 32)  # outputs of one program, of all matrices that it multiplies with
FEW, LINE_BYTES = 32, 256  # up to FEW rows a tile, weights are loaded in lines of so many bytes; else in half
WAVES = 2  # programs per processor, if there are enough columns
STAGES = 4  # at most, for tiles of MAX_ROWS; smaller tiles need one less


def experts(x: Tensor, chosen: Tensor, weights: Tensor, stack: ExpertStack, residual: Tensor) -> Tensor:
    """See `kernels.experts`, whose reference is the contract; x is normalised, and matrices have two dimensions."""
    (rows, hidden), kept, between, count = x.shape, chosen.shape[1], stack.down.shape[1], stack.experts
    pairs, itemsize = rows * kept, x.element_size()
    tall = tile_rows(pairs, count, itemsize)
    tiles, on = most_tiles(pairs, count, tall), chip(x.device)
    order, bounds = sort_by_expert(chosen, count)
    sizes = {"EXPERTS": count, "PADDED": triton.next_power_of_2(count), "HIDDEN": hidden, "BETWEEN": between}

    def launch(tiling: ExpertTiling) -> dict[str, Any]:
        shape = {"ROWS": tiling.rows, "COLUMNS": tiling.columns, "DEPTH": tiling.depth}
        return {**sizes, **shape, "UPCAST": not x.is_cuda, "num_warps": tiling.warps, "num_stages": tiling.stages}

    first = expert_tiling(tall, tiles, between, 2, itemsize, on)
    gated = x.new_empty(pairs, between)
    gated_tile[tiles, triton.cdiv(between, first.columns)](
        x.contiguous(),
        order,
        bounds,
        stack.gate_up,
        stack.gate_up_bias,
        gated,
        ACTIVATE=ACTIVATIONS[stack.activation],
        CHOSEN=kept,
        **launch(first),
    )
    second = expert_tiling(tall, tiles, hidden, 1, itemsize, on)
    parts = x.new_empty(pairs, hidden, dtype=torch.float32)
    down_tile[triton.cdiv(hidden, second.columns), tiles](
        gated,
        order,
        bounds,
        stack.down,
        stack.down_bias,
        parts,
        **launch(second),
    )
    out = torch.empty_like(residual, memory_format=torch.contiguous_format)
    sum_experts[rows, triton.cdiv(hidden, SUM_COLUMNS)](
        parts,
        chosen.contiguous(),
        weights.contiguous(),
        residual.contiguous(),
        out,
        EXPERTS=count,
        CHOSEN=kept,
        HIDDEN=hidden,
        COLUMNS=SUM_COLUMNS,
    )
    return out


@dataclass(frozen=True)
class ExpertTiling:
    """How one program multiplies a tile of rows with columns of one or two matrices of an expert."""

    rows: int
    columns: int
    depth: int  # elements of a row that are loaded at a time
    warps: int
    stages: int  # of the pipeline that loads them

    def shared_bytes(self, matrices: int, itemsize: int) -> int:
        """Return a bound on a program's shared memory: the loads in flight, and as much as one for the results."""
        return self.stages * (self.rows + matrices * self.columns) * self.depth * itemsize + RESERVED_BYTES


def tile_rows(pairs: int, experts: int, itemsize: int) -> int:
    """Return the rows of a tile: half more than an expert has on average, so that most experts need one tile."""
    if itemsize > 2:
        return MIN_ROWS
    usual = -(-3 * pairs // (2 * experts))
    return min(MAX_ROWS, max(MIN_ROWS, 1 << (usual - 1).bit_length()))


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """Return the most tiles that so many pairs of a row and an expert can need, however they are distributed."""
    served = min(pairs, experts)  # with one row each; every `rows` more need one more tile
    return served + (pairs - served) // rows


def expert_tiling(rows: int, tiles: int, width: int, matrices: int, itemsize: int, on: Chip) -> ExpertTiling:
    """Return the tiling of a product with `width` outputs; its tiles of rows are about `tiles`."""
    if itemsize > 2:
        return ExpertTiling(rows, COLUMNS[-1], LINE_BYTES // 2 // itemsize, WARPS[itemsize], STAGES - 1)
    most = 2 * rows if rows == MAX_ROWS and on.major > 8 else 128  # more columns would spill on 8.0
    columns = [total // matrices for total in COLUMNS if COLUMNS[-1] * matrices <= total <= most]
    enough = (n for n in columns if tiles * (width // n) >= WAVES * on.processors)
    line = LINE_BYTES if rows <= FEW else LINE_BYTES // 2
    warps, stages = (8, STAGES) if rows == MAX_ROWS else (4, STAGES - 1)
    return ExpertTiling(rows, next(enough, columns[-1]), line // itemsize, warps, stages)
