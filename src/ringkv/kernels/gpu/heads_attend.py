"""Decode attention on CUDA over slots whose heads have different numbers of entries, on which no launch depends.

B rows of a step, S slots, H key-value heads, G query heads each, E entries of a slot, D head_dim.
"""

from dataclasses import replace

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.decode_attend import LOG2_E, Attended, empty_parts, merged, strides, tile
from ringkv.kernels.gpu.heads_split import heads_split
from ringkv.kernels.gpu.merge_splits import splits_of_head
from ringkv.kernels.gpu.tiling import Tiling, chip, tiling

SPREAD = 4  # a head with so many times the entries of a usual one has splits of the usual length
HEAD_ENTRIES = 8192  # of a usual head: a slot has the entries of all layers, so its size does not tell


def decode_attend_heads(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """See `kernels.decode_attend_heads`, whose reference is the contract. `cut` replaces `usual_tiling`.

    The splits of `cut` are those of a head on average.
    """
    usual = cut or usual_tiling(q, keys)
    most = replace(usual, splits=usual.splits * SPREAD)
    (rows, heads, groups, width), padded = q.shape, tile(q)
    assert keys.stride() == values.stride()
    assert (*keys.stride()[2:], *places.stride()[1:]) == (width, 1, 2, 1)
    part, part_lse = empty_parts(q, most)
    used = q.new_empty(rows, heads, dtype=torch.int32)
    blocks = triton.cdiv(groups, padded.rows)
    q = q if q.stride(-1) == 1 else q.contiguous()
    k, v = (one if one is None or one.stride(-1) == 1 else one.contiguous() for one in (k, v))
    heads_split[most.splits, heads * blocks, rows](
        q,
        k,
        v,
        keys,
        values,
        places,
        slot,
        entry,
        live,
        part,
        part_lse,
        used,
        *q.stride()[:3],
        *strides(k),
        *strides(v),
        keys.stride(0),
        places.stride(0),
        scale * LOG2_E,
        heads,
        groups,
        usual.splits,
        most.splits,
        blocks,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=usual.block,
        UPCAST=not keys.is_cuda,
        num_warps=usual.warps,
        num_stages=usual.stages,
    )
    return merged(q, part, part_lse, used, most, count=splits_of_head)


def usual_tiling(q: Tensor, keys: Tensor) -> Tiling:
    """Return the default tiling for q [B, H, G, D] and keys [S, 1, E, D]."""
    padded, (rows, heads, groups, _) = tile(q), q.shape
    programs = rows * heads * triton.cdiv(groups, padded.rows)
    return tiling(programs, min(HEAD_ENTRIES, keys.shape[2] // heads), padded, chip(keys.device))
