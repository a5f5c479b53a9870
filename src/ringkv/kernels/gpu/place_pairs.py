# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Counting sort of many pairs of a row and an expert, in two launches: count each block's pairs, then place them.

A pair's place is the number of pairs before it: those of smaller experts, those of its expert in earlier blocks, and
those of its expert before it in its block. Pairs of experts on another rank, outside 0 .. EXPERTS - 1, come last.
"""

import triton
import triton.language as tl


@triton.jit
def _owned(experts_at, at, pairs, EXPERTS: tl.constexpr):
    """Return the expert of each pair, EXPERTS if that is on another rank, or if there is no such pair."""
    expert = tl.load(experts_at + at, mask=at < pairs, other=EXPERTS).to(tl.int32)
    return tl.where((expert < 0) | (expert > EXPERTS), EXPERTS, expert)


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
