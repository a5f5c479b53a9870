# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Encoding of one vector for the cache; each function has the bits of its torch reference's `encode`.

They must be compiled without fused multiply-adds, which round once where torch rounds twice.

D elements of a vector, of float32 [COLUMNS], which are 0 from D on.
"""

import triton
import triton.language as tl

from ringkv.kernels import constants
from ringkv.kernels.gpu.elements import elements_of
from ringkv.kernels.gpu.hadamard import rotate

MAX_INT8, MAX_INT4 = tl.constexpr(float(constants.MAX_INT8)), tl.constexpr(float(constants.MAX_INT4))
MIN_HALF, MAX_HALF = tl.constexpr(constants.MIN_HALF), tl.constexpr(constants.MAX_HALF)
CLIP, CLIPPED_STEP = tl.constexpr(constants.CLIP), tl.constexpr(constants.CLIPPED_STEP)
ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2**23: a sum with it has no bits below 1


@triton.jit
def store_int8(vector, vectors_at, scales_at, place, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    """Store int8 [D] and a float32 scale at entry `place`."""
    column = tl.arange(0, COLUMNS)
    rotated = rotate(vector, COLUMNS, STAGES)
    largest = tl.max(tl.abs(rotated), 0) + _nan_of(rotated)
    inverse = tl.where(largest > 0, tl.div_rn(1.0, largest) * MAX_INT8, 0.0)
    tl.store(vectors_at + place * WIDTH + column, rounded(rotated * inverse).to(tl.int8), mask=column < WIDTH)
    tl.store(scales_at + place, tl.div_rn(largest, MAX_INT8))


@triton.jit
def store_int4(vector, vectors_at, scales_at, place, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    """Store 16-bit words [D / 4] of four nibbles, and a float16 scale and minimum, at entry `place`."""
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    rotated = rotate(vector, COLUMNS, STAGES)
    low = tl.min(tl.where(real, rotated, float("inf")), 0) + _nan_of(rotated)
    high = tl.max(tl.where(real, rotated, float("-inf")), 0)
    minimum = clamp(low * CLIP, -MAX_HALF, MAX_HALF).to(tl.float16)
    scale = half_scale((high - low) * CLIPPED_STEP)
    above = rotated - minimum.to(tl.float32)
    levels = rounded(tl.div_rn(above, tl.zeros_like(above) + scale.to(tl.float32)))
    _store_nibbles(clamp(levels, 0.0, MAX_INT4).to(tl.int32), vectors_at, place, WIDTH, COLUMNS)
    tl.store(scales_at + place * 2, scale)
    tl.store(scales_at + place * 2 + 1, minimum)


@triton.jit
def _store_nibbles(levels, vectors_at, place, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Store levels from 0 to 15, int32 [COLUMNS], as 16-bit words [D / 4] at entry `place`."""
    word = tl.arange(0, COLUMNS // 4)
    element, distance = elements_of(word, WIDTH)
    packed = tl.zeros((COLUMNS // 4,), tl.int32)
    for nibble in tl.static_range(4):
        packed |= tl.gather(levels, element + nibble * distance, 0) << 4 * nibble
    tl.store(vectors_at + place * (WIDTH // 4) + word, packed.to(tl.int16), mask=word < WIDTH // 4)


@triton.jit
def _nan_of(vector):
    """Return NaN if an element is NaN, else 0; maxima and minima ignore NaN."""
    return tl.sum(tl.where(vector == vector, 0.0, vector), 0)


@triton.jit
def rounded(vector):
    """Round to the nearest integer, ties to even, below 2**22."""
    return (vector + ROUNDER) - ROUNDER


@triton.jit
def clamp(vector, low, high):
    return tl.where(vector < low, low, tl.where(vector > high, high, vector))  # NaN stays NaN


@triton.jit
def half_scale(scale):
    return clamp(scale, MIN_HALF, MAX_HALF).to(tl.float16)
