# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Merging of a query's splits into its output: the last kernel of a step.

B rows of a step, H key-value heads, Q queries each, D head_dim, S splits. Splits beyond the live length are
neither written nor read. Encoded values are rotated; their weighted sum is rotated back here.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.hadamard import rotate

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["splits"])
def merge_splits(
    parts,  # as `store_part` wrote them
    out_at,  # [B, H, Q, D]
    lse_at,  # float32 [B, H, Q], natural
    rows,
    index,  # see `readings`
    splits,
    READ: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,  # splits read at a time
    STAGES: tl.constexpr,  # of the rotation; 0 if values are not rotated
):
    query, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    used = splits_of(READ, index, rows, row, head, splits, BLOCK)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    queries, place = tl.num_programs(0), row.to(tl.int64) * tl.num_programs(1) + head
    out, lse = merge_parts(parts, place, query, column, real, queries, splits, used, WIDTH, COLUMNS, STEP)
    if STAGES > 0:
        out = rotate(out, COLUMNS, STAGES)
    at = place * queries + query
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
