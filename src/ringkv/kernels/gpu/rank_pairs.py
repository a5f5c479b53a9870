# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Counting sort of few pairs of a row and an expert: each pair's place is the number of pairs before it.

The first programs place pairs. The others count the pairs before each expert. Pairs of experts on another rank, outside
0 .. EXPERTS - 1, come last.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pairs"])
def rank_pairs(
    experts_at,  # int64 [pairs]
    order_at,  # int64 [pairs]
    bounds_at,  # int32 [EXPERTS + 1]
    pairs,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    placing = tl.cdiv(pairs, BLOCK)
    is_bound = tl.program_id(0) >= placing
    index = (tl.program_id(0) - tl.where(is_bound, placing, 0)) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(experts_at + index, mask=(index < pairs) & (is_bound == 0), other=0).to(tl.int32)
    own = tl.where((own < 0) | (own > EXPERTS), EXPERTS, own)
    expert, before = tl.where(is_bound, index, own), tl.where(is_bound, -1, index)
    rank = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        other = tl.load(experts_at + at, mask=at < pairs, other=EXPERTS + 1).to(tl.int32)
        other = tl.where((at < pairs) & ((other < 0) | (other > EXPERTS)), EXPERTS, other)
        is_less = other[None, :] < expert[:, None]
        is_before = is_less | ((other[None, :] == expert[:, None]) & (at[None, :] < before[:, None]))
        rank += tl.sum(is_before.to(tl.int32), 1)
    tl.store(order_at + rank, index.to(tl.int64), mask=(index < pairs) & (is_bound == 0))
    tl.store(bounds_at + index, rank, mask=(index <= EXPERTS) & is_bound)
