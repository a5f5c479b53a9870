# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Merging of a query's splits over encoded latents into its output: the last kernel of `encoded_latents`.

The weighted sum is rotated back, first latents that are exact are attended to, and the center is added again.

B rows of a step, G query heads, D elements of a latent, E first latents, S splits.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.hadamard import rotate_groups
from ringkv.kernels.gpu.latent_tiles import exact_bits
from ringkv.kernels.gpu.splits import LN_2, merge_parts, splits_of


@triton.jit(do_not_specialize=["splits"])
def merge_latents(
    parts,  # as `store_latent_part` wrote them
    dots_at,  # as `rotate_queries` wrote them
    centers,  # float32 [S, 1, D + E D], with the stride of a slot
    rows,
    out_at,  # [B, 1, G, D]
    lse_at,  # float32 [B, 1, G], natural
    scale,  # times log2(e)
    splits,
    READ: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,  # splits read at a time
    WHOLE: tl.constexpr,  # see `rotate_queries`
    WHOLE_STAGES: tl.constexpr,
    STAGES: tl.constexpr,
    ORDER: tl.constexpr,
    EXACT: tl.constexpr,
):
    query, row, groups = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    live = tl.load(rows.live + row)
    used = splits_of(READ, None, rows, row, 0, splits, BLOCK)
    slot = tl.load(rows.slot + row, mask=live > 0, other=0).to(tl.int64)  # a row without live entries may have none
    column = tl.arange(0, COLUMNS)
    real, stored = column < WIDTH, ORDER(column, WIDTH)
    out, lse = merge_parts(parts, row.to(tl.int64), query, stored, real, groups, splits, used, WIDTH, COLUMNS, STEP)
    out = rotate_groups(out, column < WHOLE, COLUMNS, WHOLE_STAGES, STAGES)
    at = row.to(tl.int64) * groups + query
    dots, of_slot = dots_at + at * (2 + EXACT) + 1, centers[0] + slot * centers[1]
    out, lse = with_exact(out, lse, dots, of_slot + WIDTH, live, scale, column, real, WIDTH, EXACT)
    is_empty = lse == float("-inf")
    out = tl.where(is_empty, 0.0, out + tl.load(of_slot + column, mask=real, other=0.0))
    lse = tl.where(is_empty, float("-inf"), (lse + tl.load(dots) * scale) * LN_2)
    tl.store(out_at + at * WIDTH + column, out.to(out_at.dtype.element_ty), mask=real)
    tl.store(lse_at + at + tl.arange(0, 1), lse)


@triton.jit
def with_exact(
    out,  # [COLUMNS], of the other latents minus the center
    lse,  # [1], in base 2
    dots,  # pointers to a query's products with the center and with first latents
    firsts,  # and to the first latents
    live,
    scale,
    column,
    real,
    WIDTH: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Return attention to the exact latents too, as to one more split, still without the center."""
    bits = exact_bits(firsts, WIDTH, EXACT)
    for first in tl.static_range(EXACT):
        is_seen = (bits >> first & 1 == 1) & (first < live)
        vector = tl.load(firsts + first * WIDTH + column, mask=real & is_seen, other=0.0)
        score = tl.where(is_seen, tl.load(dots + 1 + first) * scale, float("-inf"))
        highest = tl.maximum(lse, score)
        against = tl.where(highest == float("-inf"), 0.0, highest)
        before, weight = tl.exp2(lse - against), tl.exp2(score - against)
        total = before + weight
        by = tl.where(total == 0.0, 1.0, total)
        out, lse = (out * before + vector * weight) / by, highest + tl.log2(by)
    return out, lse
