# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Counting sort of pairs of a row and an expert: a pair's place is the number of pairs before it.

Few pairs are placed in one launch, many in two: the first counts each block's pairs, the second places them. Pairs of
experts on another rank, outside 0 .. EXPERTS - 1, come last.
"""

import triton
import triton.language as tl


@triton.jit
def _owned(experts_at, at, pairs, EXPERTS: tl.constexpr):
    """Return the expert of each pair, EXPERTS if that is on another rank, or if there is no such pair."""
    expert = tl.load(experts_at + at, mask=at < pairs, other=EXPERTS).to(tl.int32)
    return tl.where((expert < 0) | (expert > EXPERTS), EXPERTS, expert)


@triton.jit(do_not_specialize=["pairs"])
def rank_pairs(
    experts_at,  # int64 [pairs]
    order_at,  # int64 [pairs]
    bounds_at,  # int32 [EXPERTS + 1]
    pairs,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Place few pairs in one launch. The first programs place pairs, the others count those before each expert."""
    placing = tl.cdiv(pairs, BLOCK)
    is_bound = tl.program_id(0) >= placing
    index = (tl.program_id(0) - tl.where(is_bound, placing, 0)) * BLOCK + tl.arange(0, BLOCK)
    own = _owned(experts_at, index, pairs, EXPERTS)
    expert, before = tl.where(is_bound, index, own), tl.where(is_bound, -1, index)
    rank = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        other = tl.where(at < pairs, _owned(experts_at, at, pairs, EXPERTS), EXPERTS + 1)
        is_less = other[None, :] < expert[:, None]
        is_before = is_less | ((other[None, :] == expert[:, None]) & (at[None, :] < before[:, None]))
        rank += tl.sum(is_before.to(tl.int32), 1)
    tl.store(order_at + rank, index.to(tl.int64), mask=(index < pairs) & (is_bound == 0))
    tl.store(bounds_at + index, rank, mask=(index <= EXPERTS) & is_bound)


@triton.jit(do_not_specialize=["pairs"])
def count_pairs(
    experts_at,  # int64 [pairs]
    counts_at,  # int32 [blocks, PADDED]
    pairs,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,  # a power of two above EXPERTS: pairs beyond the last count for expert EXPERTS
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = _owned(experts_at, at, pairs, EXPERTS)
    tl.store(counts_at + tl.program_id(0) * PADDED + tl.arange(0, PADDED), tl.histogram(own, PADDED))


@triton.jit(do_not_specialize=["pairs"])
def place_pairs(
    experts_at,  # int64 [pairs]
    counts_at,  # int32 [blocks, PADDED]
    order_at,  # int64 [pairs]
    bounds_at,  # int32 [EXPERTS + 1]
    pairs,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,  # pairs of a block that are compared with all of it at a time
    LINES: tl.constexpr,  # blocks whose counts are loaded at a time
):
    """Place many pairs: behind those of smaller experts, and behind those of their own expert that come earlier."""
    me, blocks, expert = tl.program_id(0), tl.num_programs(0), tl.arange(0, PADDED)
    total, earlier = tl.zeros((PADDED,), tl.int32), tl.zeros((PADDED,), tl.int32)
    for start in range(0, blocks, LINES):
        block = start + tl.arange(0, LINES)
        at = block[:, None] * PADDED + expert[None, :]
        counts = tl.load(counts_at + at, mask=(block < blocks)[:, None], other=0)
        total += tl.sum(counts, 0)
        earlier += tl.sum(tl.where((block < me)[:, None], counts, 0), 0)
    first = tl.cumsum(total, 0) - total
    tl.store(bounds_at + expert, first, mask=(expert <= EXPERTS) & (me == 0))
    base = first + earlier
    at = me * BLOCK + tl.arange(0, BLOCK)
    own = _owned(experts_at, at, pairs, EXPERTS)
    for start in tl.static_range(0, BLOCK, PART):
        part = me * BLOCK + start + tl.arange(0, PART)
        mine = _owned(experts_at, part, pairs, EXPERTS)
        is_before = (own[None, :] == mine[:, None]) & (at[None, :] < part[:, None])
        place = tl.gather(base, mine, 0) + tl.sum(is_before.to(tl.int32), 1)
        tl.store(order_at + place, part.to(tl.int64), mask=part < pairs)
