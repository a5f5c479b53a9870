"""Decode attention on CUDA: two Triton kernels whose launch does not depend on the lengths, as a CUDA graph needs.

B rows of a step, S slots, H key-value heads, G query heads each, C entries, D head_dim. A row's result
depends only on its slot's length and on fixed shapes, not on its neighbours.
"""

from math import log2

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.cache_split import cache_split
from ringkv.kernels.gpu.merge_splits import merge_splits, splits_of_row
from ringkv.kernels.gpu.tiling import Tile, Tiling, chip, tiling

LOG2_E = log2(2.718281828459045)
MIN_ROWS, MAX_ROWS = 16, 32  # queries of one program; tensor cores need at least 16 rows and columns
MERGE_STEP = 16  # splits that `merge_splits` reads at a time

Attended = tuple[Tensor, Tensor]
"""out [B, H, Q, D] and its natural log-sum-exp, float32 [B, H, Q], for Q queries of each head."""


def decode_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """See `kernels.decode_attend`, whose reference is the contract. `cut` replaces `usual_tiling`.

    keys and values [S, H, C, D] may be views of a larger tensor if each head's [C, D] is contiguous.
    """
    cut = cut or usual_tiling(q, keys)
    (rows, heads, groups, width), padded = q.shape, tile(q)
    part, part_lse = empty_parts(q, cut)
    blocks = triton.cdiv(groups, padded.rows)
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    attend_split[cut.splits, heads * blocks, rows](
        q,
        k,
        v,
        keys,
        values,
        slot,
        entry,
        live,
        part,
        part_lse,
        *q.stride()[:3],
        *k.stride()[:2],
        *v.stride()[:2],
        *_plane_strides(keys, values),
        scale * LOG2_E,
        heads,
        groups,
        cut.splits,
        blocks,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=cut.block,
        UPCAST=not keys.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(q, part, part_lse, live, cut)


def cache_attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slot: Tensor,
    holes: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """See `kernels.decode_attend.cache_reference`, which is the contract; q [B, H, T * G, D], holes int32 [B, T]."""
    cut = cut or usual_tiling(q, keys)
    (rows, heads, queries, width), padded, fresh = q.shape, tile(q), holes.shape[1]
    part, part_lse = empty_parts(q, cut)
    blocks = triton.cdiv(queries, padded.rows)
    q = q if q.stride(-1) == 1 else q.contiguous()
    cache_split[cut.splits, heads * blocks, rows](
        q,
        keys,
        values,
        slot,
        holes.contiguous(),
        live,
        part,
        part_lse,
        *q.stride()[:3],
        *_plane_strides(keys, values),
        scale * LOG2_E,
        heads,
        queries,
        queries // fresh,
        cut.splits,
        blocks,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=cut.block,
        HOLES=fresh,
        UPCAST=not keys.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(q, part, part_lse, live, cut)


def usual_tiling(q: Tensor, keys: Tensor) -> Tiling:
    """Return the default tiling for q [B, H, Q, D] and keys [S, H, C, D]."""
    padded = tile(q)
    programs = q.shape[0] * q.shape[1] * triton.cdiv(q.shape[2], padded.rows)
    return tiling(programs, keys.shape[2], padded, chip(q.device))


def tile(q: Tensor) -> Tile:
    """Return the tile of queries [B, H, Q, D] that one program processes, padded to powers of two."""
    rows, columns = (max(MIN_ROWS, int(triton.next_power_of_2(n))) for n in q.shape[2:])
    return Tile(min(rows, MAX_ROWS), columns, q.element_size())


def empty_parts(q: Tensor, cut: Tiling) -> Attended:
    """Allocate the splits' partial results: float32 [B, H, splits, Q, D] and [B, H, splits, Q]."""
    rows, heads, queries, width = q.shape
    part = q.new_empty(rows, heads, cut.splits, queries, width, dtype=torch.float32)
    return part, q.new_empty(part.shape[:-1], dtype=torch.float32)


def strides(new: Tensor | None) -> tuple[int, ...]:
    """Return the strides of a row and of a head of new keys or values [B, H, D], if there are any."""
    return (0, 0) if new is None else new.stride()[:2]


def _plane_strides(keys: Tensor, values: Tensor) -> tuple[int, ...]:
    assert keys.stride() == values.stride()
    assert keys.stride()[2:] == (keys.shape[3], 1)
    return keys.stride()[:2]


def merged(
    q: Tensor,
    part: Tensor,
    part_lse: Tensor,
    live: Tensor,
    cut: Tiling,
    stages: int = 0,
    count: triton.JITFunction = splits_of_row,
) -> Attended:
    """Merge the splits of `live` entries to the result for q [B, H, Q, D], rotated by so many stages.

    count: returns how many splits were written, from `live`.
    """
    (rows, heads, queries, width), columns = q.shape, tile(q).columns
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)
    merge_splits[queries, heads, rows](
        part,
        part_lse,
        live,
        out,
        lse,
        heads,
        queries,
        cut.splits,
        WIDTH=width,
        COLUMNS=columns,
        BLOCK=cut.block,
        COUNT=count,
        STEP=MERGE_STEP,
        STAGES=stages,
        num_warps=max(2, columns // 128),
    )
    return out, lse
