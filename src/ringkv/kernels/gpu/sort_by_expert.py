# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""sort_by_expert: pairs of a row and an expert, sorted by expert, on the device alone and with static shapes.

It is a counting sort: a pair's place is the number of pairs before it. Few pairs are placed in one launch, many in two:
the first counts each block's pairs, the second places them. Pairs of experts on another rank, outside 0 .. E - 1, come
last.

M rows, E experts, K chosen for each row.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # pairs that one program places
FEW = 512  # pairs; ranking takes their square, but one launch
MANY_BLOCK, LOADED = 256, 4096  # of a sort in two launches: pairs of one program, counts that it loads at a time


class Sorted(NamedTuple):
    """order: int64 [M * K], the pairs by expert, then by row. bounds: int32 [E + 1], the first place of each expert.

    The last bound is the number of pairs whose expert is one of the E. All others, of experts on another rank, follow.
    """

    order: Tensor
    bounds: Tensor


def sort_by_expert(chosen: Tensor, count: int) -> Sorted:
    """Sort the pairs of chosen int64 [M, K] by expert. All shapes are static, and the host waits for nothing."""
    return ranked(chosen, count) if chosen.numel() <= FEW else placed(chosen, count)


def ranked(chosen: Tensor, count: int) -> Sorted:
    """Sort few pairs in one launch."""
    pairs = chosen.numel()
    result = Sorted(chosen.new_empty(pairs), chosen.new_empty(count + 1, dtype=torch.int32))
    programs = triton.cdiv(pairs, BLOCK) + triton.cdiv(count + 1, BLOCK)
    rank_pairs[(programs,)](chosen.contiguous(), *result, pairs, EXPERTS=count, BLOCK=BLOCK, num_warps=8)
    return result


def placed(chosen: Tensor, count: int) -> Sorted:
    """Sort many pairs in two launches."""
    pairs, padded = chosen.numel(), triton.next_power_of_2(count + 1)
    blocks = triton.cdiv(pairs, MANY_BLOCK)
    result = Sorted(chosen.new_empty(pairs), chosen.new_empty(count + 1, dtype=torch.int32))
    counts = chosen.new_empty(blocks, padded, dtype=torch.int32)
    sizes = {"EXPERTS": count, "PADDED": padded, "BLOCK": MANY_BLOCK}
    chosen = chosen.contiguous()
    count_pairs[(blocks,)](chosen, counts, pairs, **sizes)
    place_pairs[(blocks,)](chosen, counts, *result, pairs, **sizes, PART=BLOCK, LINES=max(1, LOADED // padded))
    return result


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
