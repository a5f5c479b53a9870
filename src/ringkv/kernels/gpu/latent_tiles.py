# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Helpers of the kernels of attention over latents: an online softmax over entries, each of which is key and value.

A tile of entries is loaded once for both of its products. Encoded latents are decoded for them. They are loaded as
16-bit words. The elements of a word follow each other in a tile, so those of nibbles are in the order of `by_nibble`.

D elements of an entry. They are two parts: FIRST, the largest power of two below D, and the rest, padded to REST.
Encoded ones are in groups of GROUP elements with a scale each.
"""

import triton
import triton.language as tl

from ringkv.base.cache_spec import LATENT_GROUP as _GROUP
from ringkv.kernels.gpu.elements import OFFSET, int8_of, low_half, nibble_of

GROUP = tl.constexpr(_GROUP)


@triton.jit
def attend_latents(
    q,  # [ROWS, FIRST] and [ROWS, REST]
    latents,  # pointer to entry 0
    ranges,  # and to that of its scales; None if latents are plain
    first,  # entries to read
    stop,
    skip,  # an entry that is not read, or -1
    exact,  # bits of entries that are not read; None: there are none
    last,  # [ROWS], the last entry that each query sees; None: all that are read
    softmax,  # so far: maximum [ROWS], sum [ROWS], weighted values [ROWS, FIRST] and [ROWS, REST]
    scale,  # of all scores, or [ROWS, 1]
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,  # loads a tile, as `plain_tile`
    DTYPE: tl.constexpr,  # to which elements and weights are rounded
    PACKED: tl.constexpr,  # see `elements`
):
    """Continue the softmax over entries first .. stop-1. Exponentials are powers of two: `scale` includes log2(e)."""
    q_first, q_rest = q
    top, total, acc_first, acc_rest = softmax
    FIRST: tl.constexpr = q_first.shape[1]
    REST: tl.constexpr = q_rest.shape[1]
    for start in range(first, stop, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_read = (at < stop) & (at != skip)
        if exact is not None:
            is_read = is_read & (exact >> tl.minimum(at, 31) & 1 == 0)
        k_first = TILE(latents, ranges, at, is_read, 0, WIDTH, FIRST, PACKED).to(DTYPE).to(q_first.dtype)
        k_rest = TILE(latents, ranges, at, is_read, FIRST, WIDTH, REST, PACKED).to(DTYPE).to(q_first.dtype)
        scores = tl.dot(q_first, tl.trans(k_first), input_precision="ieee")
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee") * scale
        scores = tl.where(is_read[None, :], scores, float("-inf"))
        if last is not None:
            scores = tl.where(at[None, :] <= last[:, None], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        against = tl.where(highest == float("-inf"), 0.0, highest)  # if a query sees no entry of the tile
        weights = tl.exp2(scores - against[:, None])
        shrink = tl.exp2(top - against)
        total = total * shrink + tl.sum(weights, 1)
        weights = weights.to(DTYPE).to(q_first.dtype)
        acc_first = tl.dot(weights, k_first, acc_first * shrink[:, None], input_precision="ieee")
        acc_rest = tl.dot(weights, k_rest, acc_rest * shrink[:, None], input_precision="ieee")
        top = highest
    return top, total, acc_first, acc_rest


@triton.jit
def no_latents(ROWS: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr):
    """Return the softmax before any entry, as `attend_latents` takes it."""
    top, total = tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    return top, total, tl.zeros((ROWS, FIRST), tl.float32), tl.zeros((ROWS, REST), tl.float32)


@triton.jit
def plain_tile(
    latents,
    ranges,
    at,  # [BLOCK], entries
    is_read,
    START: tl.constexpr,  # the elements that it returns
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Return elements START .. START + SIZE - 1 of entries, [BLOCK, SIZE]; 0 for those that are not read."""
    column = START + tl.arange(0, SIZE)
    mask = is_read[:, None] if START == 0 else is_read[:, None] & (column < WIDTH)[None, :]
    return tl.load(latents + at[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_latent_part(
    split_parts,  # float32 [B, S, G, D], normalised; float32 [B, S, G], log2 of the sum of exponentials
    at,  # [ROWS], their queries
    is_query,
    softmax,  # as `attend_latents` returns it
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
):
    """Write the partial results of one split."""
    top, total, acc_first, acc_rest = softmax
    column, rest = tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    is_empty = total == 0.0
    by = tl.where(is_empty, 1.0, total)
    parts = split_parts[0] + at[:, None] * WIDTH
    tl.store(parts + column[None, :], acc_first / by[:, None], mask=is_query[:, None])
    tl.store(parts + rest[None, :], acc_rest / by[:, None], mask=is_query[:, None] & (rest < WIDTH)[None, :])
    tl.store(split_parts[1] + at, tl.where(is_empty, float("-inf"), top + tl.log2(by)), mask=is_query)


@triton.jit
def exact_bits(firsts, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    """Return int32 whose bit e is set if first latent e of E is kept exactly beside the center; else it is NaN."""
    bits = tl.full((), 0, tl.int32)
    for first in tl.static_range(EXACT):
        element = tl.load(firsts + first * WIDTH)
        bits |= tl.where(element == element, 1 << first, 0)
    return bits


@triton.jit
def with_center(
    out,  # [COLUMNS], of the other latents minus the center
    lse,  # [1], in base 2
    latents,  # see `merge_splits`
    rows,
    row,
    at,  # place of the query among those of all rows
    scale,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Return attention to the exact latents too, each as one more split, and with the center."""
    column, live = tl.arange(0, COLUMNS), tl.load(rows.live + row)
    real = column < WIDTH
    dots_at, centers = latents
    slot = tl.load(rows.slot + row, mask=live > 0, other=0).to(tl.int64)  # a row without live entries may have none
    dots, center = dots_at + at * (2 + EXACT) + 1, centers[0] + slot * centers[1]
    bits = exact_bits(center + WIDTH, WIDTH, EXACT)
    for first in tl.static_range(EXACT):
        is_seen = (bits >> first & 1 == 1) & (first < live)
        vector = tl.load(center + (1 + first) * WIDTH + column, mask=real & is_seen, other=0.0)
        score = tl.where(is_seen, tl.load(dots + 1 + first) * scale, float("-inf"))
        highest = tl.maximum(lse, score)
        against = tl.where(highest == float("-inf"), 0.0, highest)
        before, weight = tl.exp2(lse - against), tl.exp2(score - against)
        total = before + weight
        by = tl.where(total == 0.0, 1.0, total)
        out, lse = (out * before + vector * weight) / by, highest + tl.log2(by)
    is_empty = lse == float("-inf")
    out = tl.where(is_empty, 0.0, out + tl.load(center + column, mask=real, other=0.0))
    return out, tl.where(is_empty, float("-inf"), lse + tl.load(dots) * scale)


@triton.jit
def int8_tile(
    latents,  # int16
    scales,
    at,
    is_read,
    START: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PACKED: tl.constexpr,
):
    words = load_words(latents, at, is_read, START // 2, WIDTH // 2, SIZE // 2)
    elements = tl.interleave(int8_of(words, 0, PACKED), int8_of(words, 1, PACKED))
    return elements.to(tl.float32) * by_group(load_ranges(scales, at, is_read, START, WIDTH, SIZE), SIZE)


@triton.jit
def int4_tile(
    latents,  # int16
    ranges,  # int32: scale and minimum in float16
    at,
    is_read,
    START: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PACKED: tl.constexpr,
):
    words = load_words(latents, at, is_read, START // 4, WIDTH // 4, SIZE // 4)
    even = tl.interleave(nibble_of(words, 0, PACKED), nibble_of(words, 2, PACKED))
    odd = tl.interleave(nibble_of(words, 1, PACKED), nibble_of(words, 3, PACKED))
    limits = load_ranges(ranges, at, is_read, START, WIDTH, SIZE)
    steps = low_half(limits)
    lowest = low_half(limits >> 16) - OFFSET * steps
    return tl.interleave(even, odd).to(tl.float32) * by_group(steps, SIZE) + by_group(lowest, SIZE)


@triton.jit
def load_words(latents, at, is_read, START: tl.constexpr, WORDS: tl.constexpr, SIZE: tl.constexpr):
    """Return words START .. START + SIZE - 1 of entries, [BLOCK, SIZE]; 0 for those that are not read."""
    word = START + tl.arange(0, SIZE)
    mask = is_read[:, None] if START == 0 else is_read[:, None] & (word < WORDS)[None, :]
    return tl.load(latents + at[:, None] * WORDS + word[None, :], mask=mask, other=0)


@triton.jit
def load_ranges(ranges, at, is_read, START: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Return the scales of the groups of elements START .. START + SIZE - 1, [BLOCK, groups]."""
    ALL: tl.constexpr = (WIDTH + GROUP - 1) // GROUP
    HERE: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    group = tl.arange(0, HERE) + START // GROUP
    mask = is_read[:, None] & (group < ALL)[None, :]
    return tl.load(ranges + at[:, None] * ALL + group[None, :], mask=mask, other=0)


@triton.jit
def by_group(factors, SIZE: tl.constexpr):
    """Return the factor of each element's group, [BLOCK, SIZE], from [BLOCK, groups]."""
    BLOCK: tl.constexpr = factors.shape[0]
    GROUPS: tl.constexpr = factors.shape[1]
    each = tl.broadcast_to(factors[:, :, None], (BLOCK, GROUPS, SIZE // GROUPS))
    return tl.reshape(each, (BLOCK, SIZE))
