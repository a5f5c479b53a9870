# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Helpers of the kernels of attention over latents: an online softmax over entries, each of which is key and value.

D elements of an entry. They are two parts: FIRST, the largest power of two below D, and the rest, padded to REST. A
tile of entries is loaded once for both of its products.
"""

import triton
import triton.language as tl


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
