"""experts on CUDA: two grouped GEMMs and a sum in Triton. Shapes and launches do not depend on the router's top-k.

M rows, E experts, K chosen for each row, H hidden elements, I intermediate elements. A row's result depends on
the row and on fixed shapes alone.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.gpu.expert_products import ACTIVATIONS, down_tile, gated_tile, sum_experts
from ringkv.kernels.gpu.expert_tiling import ExpertTiling, expert_tiling, most_tiles, tile_rows
from ringkv.kernels.gpu.sort_by_expert import sort_by_expert
from ringkv.kernels.gpu.tiling import chip

SUM_COLUMNS = 512  # elements that one program of the sum adds


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
