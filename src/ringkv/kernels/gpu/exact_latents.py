# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""First latents that a slot keeps exactly, beside its center. They are attended to as one more split.

D elements of a latent, E first latents. One that is not kept exactly is NaN.
"""

import triton
import triton.language as tl


@triton.jit
def exact_bits(firsts, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    """Return int32 whose bit e is set if first latent e is kept exactly."""
    bits = tl.full((), 0, tl.int32)
    for first in tl.static_range(EXACT):
        element = tl.load(firsts + first * WIDTH)
        bits |= tl.where(element == element, 1 << first, 0)
    return bits


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
    """Return attention to the exact latents too, still without the center."""
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
