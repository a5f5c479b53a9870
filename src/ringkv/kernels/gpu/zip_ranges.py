# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""How zipcache quantises a part of a chunk, with the bits of `kernels.zip_codes`; see `append_token`.

A packed byte of 4 bits has two elements, one of 2 bits has four: nibbles of two bytes that are half a vector apart.
They must be compiled without fused multiply-adds, which round once where torch rounds twice.

D elements of a vector.
"""

import triton
import triton.language as tl

from ringkv.kernels.constants import OUTWARD as _OUTWARD
from ringkv.kernels.gpu.encode_vector import MAX_HALF, clamp, half_scale, rounded
from ringkv.kernels.gpu.nibbles import elements_of

UP, DOWN = tl.constexpr(1 + _OUTWARD), tl.constexpr(1 - _OUTWARD)


@triton.jit
def element_of(byte, PART: tl.constexpr, WIDTH: tl.constexpr):
    """Return the element that is one of the parts of packed bytes: for 2 bits, parts 2 and 3 are half a vector on."""
    pair = byte + PART // 2 * (WIDTH // 4)  # a byte of two elements
    element, distance = elements_of(pair // 2, WIDTH)
    return element + (pair % 2 * 2 + PART % 2) * distance


@triton.jit
def shift_of(PART: tl.constexpr):
    """Return the lowest bit of a part in its byte."""
    return 4 * (PART % 2) + 2 * (PART // 2)


@triton.jit
def range_of(low, high, LEVELS: tl.constexpr):
    """Return scale and minimum, float16, of elements from `low` to `high`, whose levels are at most LEVELS."""
    minimum = clamp(low * tl.where(low < 0, UP, DOWN), -MAX_HALF, MAX_HALF).to(tl.float16)
    return half_scale((high - minimum.to(tl.float32)) * (UP / LEVELS)), minimum


@triton.jit
def levels_of(x, scale, minimum, LEVELS: tl.constexpr):
    """Return levels, int32, of float32 elements."""
    above = x - minimum.to(tl.float32)
    return clamp(rounded(tl.div_rn(above, tl.zeros_like(above) + scale.to(tl.float32))), 0.0, LEVELS).to(tl.int32)
