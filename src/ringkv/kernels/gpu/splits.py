# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Partial results of splits, and their merging into a query's output: the last kernel of a step.

Splits beyond the live length are neither written nor read. Encoded values are rotated; their weighted sum is rotated
back here. Those of latents also lack the exact ones, and the center.

B rows of a step, H key-value heads, Q queries of each, D elements of a vector, E first latents, S splits.
"""

from math import log2

import torch
import triton
import triton.language as tl
from torch import Tensor

from ringkv.kernels.gpu.hadamard import UNROTATED, Rotation, rotate_groups
from ringkv.kernels.gpu.latent_tiles import with_center
from ringkv.kernels.gpu.readings import EVERY, Reading
from ringkv.kernels.gpu.step import Strided
from ringkv.kernels.gpu.tiling import Tiling, tile
from ringkv.kernels.slots import Rows

LOG2_E = log2(2.718281828459045)
LN_2 = tl.constexpr(0.6931471805599453)
MERGE_STEP = 16  # splits that are read at a time

OutAndLse = tuple[Tensor, Tensor]
"""out [B, H, Q, D] and its natural log-sum-exp, float32 [B, H, Q]."""


def empty_parts(q: Tensor, splits: int) -> OutAndLse:
    """Allocate the splits' partial results: float32 [B, H, splits, Q, D] and [B, H, splits, Q]."""
    rows, heads, queries, width = q.shape
    part = q.new_empty(rows, heads, splits, queries, width, dtype=torch.float32)
    return part, q.new_empty(part.shape[:-1], dtype=torch.float32)


def merged(
    q: Tensor,
    parts: OutAndLse,
    rows: Rows,
    cut: Tiling,
    rotation: Rotation = UNROTATED,
    reading: Reading = EVERY,
    latents: tuple[Tensor, Strided] | None = None,
    scale: float = 1.0,
) -> OutAndLse:
    """Merge the splits of what rows read to the result for q [B, H, Q, D].

    latents, scale: of encoded latents, see `merge_splits`.
    """
    (batch, heads, queries, width), columns = q.shape, tile(q).columns
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)
    merge_splits[queries, heads, batch](
        parts,
        latents,
        out,
        lse,
        rows,
        reading.index,
        scale * LOG2_E,
        cut.splits,
        READ=reading.functions,
        WIDTH=width,
        COLUMNS=columns,
        BLOCK=cut.block,
        STEP=MERGE_STEP,
        WHOLE=rotation.whole,
        WHOLE_STAGES=rotation.whole_stages,
        STAGES=rotation.stages,
        ORDER=rotation.order,
        EXACT=latents[0].shape[-1] - 2 if latents else 0,
        num_warps=max(2, columns // 128),
    )
    return out, lse


@triton.jit(do_not_specialize=["splits"])
def merge_splits(
    parts,  # as `store_part` wrote them
    latents,  # encoded ones: dots as `rotate_queries` wrote them, centers float32 [S, 1, D + E D] with a slot's stride
    out_at,  # [B, H, Q, D]
    lse_at,  # float32 [B, H, Q], natural
    rows,
    index,  # see `readings`
    scale,  # times log2(e)
    splits,
    READ: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,  # splits read at a time
    WHOLE: tl.constexpr,  # see `rotate_queries`
    WHOLE_STAGES: tl.constexpr,
    STAGES: tl.constexpr,  # 0 if values are not rotated
    ORDER: tl.constexpr,
    EXACT: tl.constexpr,
):
    query, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    used = splits_of(READ, index, rows, row, head, splits, BLOCK)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    queries, place = tl.num_programs(0), row.to(tl.int64) * tl.num_programs(1) + head
    stored, at = ORDER(column, WIDTH), place * queries + query
    out, lse = merge_parts(parts, place, query, stored, real, queries, splits, used, WIDTH, COLUMNS, STEP)
    if STAGES > 0:
        out = rotate_groups(out, column < WHOLE, COLUMNS, WHOLE_STAGES, STAGES)
    if latents is not None:
        out, lse = with_center(out, lse, latents, rows, row, at, scale, WIDTH, COLUMNS, EXACT)
    tl.store(out_at + at * WIDTH + column, out.to(out_at.dtype.element_ty), mask=real)
    tl.store(lse_at + at + tl.arange(0, 1), lse * LN_2)


@triton.jit
def splits_of(READ: tl.constexpr, index, rows, row, head, splits, BLOCK: tl.constexpr):
    """Return how many splits of a row's head were written."""
    slot, live = tl.load(rows.slot + row).to(tl.int64), tl.load(rows.live + row)
    length, width = READ.split(index, row, slot, head, live, splits, BLOCK)
    return tl.cdiv(length, tl.maximum(width, 1))


@triton.jit
def merge_parts(
    parts,
    place,  # row * H + head
    query,
    column,  # [COLUMNS], where elements are in a part
    real,  # [COLUMNS], which of them exist
    queries,
    splits,
    used,  # splits that were written
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Return a query's output [COLUMNS], and its log-sum-exp [1] in base 2; 0 and -inf if it has seen no entry."""
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, used, STEP):
        split = start + tl.arange(0, STEP)
        is_used = split < used
        mask = is_used[:, None] & real[None, :]
        at = (place * splits + split) * queries + query
        lse = tl.load(parts[1] + at, mask=is_used, other=float("-inf"))
        part = tl.load(parts[0] + at[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        highest = tl.maximum(top, tl.max(lse, 0))
        against = tl.where(highest == float("-inf"), 0.0, highest)  # if the query sees no entry of these splits
        shrink = tl.exp2(top - against)
        weight = tl.exp2(lse - against)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(weight[:, None] * part, 0)
        top = highest
    is_empty = total == 0.0
    by = tl.where(is_empty, 1.0, total)
    return acc / by, tl.where(is_empty, float("-inf"), top + tl.log2(by))
