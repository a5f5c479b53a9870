# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Helpers of the kernels of attention over latents: an online softmax over entries, each of which is key and value.

D elements of an entry. They are two parts: FIRST, the largest power of two below D, and the rest, padded to REST. A
tile of entries is loaded once for both of its products.
"""

import triton
import triton.language as tl


@triton.jit
def attend_latents(
    q_first,  # [ROWS, FIRST]
    q_rest,  # [ROWS, REST]
    latents,  # pointer to entry 0
    first,  # entries to read
    stop,
    skip,  # an entry that is not read, or -1
    last,  # [ROWS], the last entry that each query sees; None: all that are read
    top,  # the softmax so far: maximum [ROWS], sum [ROWS], weighted values [ROWS, FIRST] and [ROWS, REST]
    total,
    acc_first,
    acc_rest,
    scale,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Continue the softmax over entries first .. stop-1. Exponentials are powers of two: `scale` includes log2(e)."""
    column, rest = tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    for start in range(first, stop, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_read = (at < stop) & (at != skip)
        entries = latents + at[:, None] * WIDTH
        k_first = tl.load(entries + column[None, :], mask=is_read[:, None], other=0.0).to(q_first.dtype)
        k_rest = tl.load(entries + rest[None, :], mask=is_read[:, None] & (rest < WIDTH)[None, :], other=0.0)
        k_rest = k_rest.to(q_first.dtype)
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
        weights = weights.to(latents.dtype.element_ty).to(q_first.dtype)
        acc_first = tl.dot(weights, k_first, acc_first * shrink[:, None], input_precision="ieee")
        acc_rest = tl.dot(weights, k_rest, acc_rest * shrink[:, None], input_precision="ieee")
        top = highest
    return top, total, acc_first, acc_rest
