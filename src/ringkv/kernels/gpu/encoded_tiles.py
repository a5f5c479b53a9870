# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Helpers of the kernels of attention over encoded entries: loads of tiles, scores of first keys, an online softmax.

Entries are loaded as 16-bit words of several elements, because tensor cores read those transposed. The elements of a
word are multiplied one after the other, so that none has to change its place.

Scores are [BLOCK, ROWS], entries first. Tensor cores take 8 queries then, not 16, and one warp can process a tile: no
warp waits for others, and no lane for queries that do not exist.

D elements of a vector in W words. E first keys that a slot keeps exactly.
"""

import triton
import triton.language as tl


@triton.jit
def load_words(words_at, at, WORDS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the words of entries `at`, int16 [BLOCK, COLUMNS]; they are 0 from W on."""
    word = tl.arange(0, COLUMNS)
    tile = words_at + at[:, None] * WORDS + word[None, :]
    if WORDS == COLUMNS:
        return tl.load(tile)
    return tl.load(tile, mask=(word < WORDS)[None, :], other=0)


@triton.jit
def with_first(
    scores,  # [BLOCK, ROWS], of the stored keys
    dots,  # pointers to a query's products with first keys, [ROWS]
    is_query,
    start,
    at,  # [BLOCK], entries
    scale,
    EXACT: tl.constexpr,  # E
):
    """Return scores in which those of first keys that are exact replace the stored ones'."""
    if start == 0:
        for first in tl.static_range(EXACT):
            exact = tl.load(dots + first, mask=is_query, other=float("nan"))[None, :]
            scores = tl.where((at == first)[:, None] & (exact == exact), exact * scale, scores)
    return scores


@triton.jit
def next_weights(scores, scales, top, total):
    """Return weights [BLOCK, ROWS], each softmax weight times its value's scale, and the factor [ROWS] of earlier ones.

    Also returns the softmax weights themselves, and the next `top` and `total`. `top` is of weights times the power of
    two in their scale: so weights are at most 2 and fit in float16, however small the values are.
    """
    bits = scales.to(tl.int32, bitcast=True)
    exponent, power = (bits >> 23) - 127, (254 << 23) - (bits & 0x7F800000)  # 2**-exponent
    mantissa = (bits & 0x7FFFFF | 0x3F800000).to(tl.float32, bitcast=True)
    scores += (exponent.to(tl.float32) + (scales - scales))[:, None]  # NaN stays NaN
    highest = tl.maximum(top, tl.max(scores, 0))
    weights = tl.exp2(scores - highest[None, :])
    shrink = tl.exp2(top - highest)
    unscaled = weights * power.to(tl.float32, bitcast=True)[:, None]
    return weights * mantissa[:, None], shrink, unscaled, highest, total * shrink + tl.sum(unscaled, 0)
