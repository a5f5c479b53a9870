# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Encoding of one vector for the cache, in each format; each function has the bits of its torch reference's `encode`.

They must be compiled without fused multiply-adds, which round once where torch rounds twice.

D elements of a vector, of float32 [COLUMNS], which are 0 from D on.
"""

import triton
import triton.language as tl

from ringkv.kernels.decode_attend_fp8 import MAX_E4M3 as _MAX_E4M3
from ringkv.kernels.decode_attend_int4 import CLIP as _CLIP
from ringkv.kernels.decode_attend_int4 import MAX_INT4 as _MAX_INT4
from ringkv.kernels.decode_attend_int8 import MAX_INT8 as _MAX_INT8
from ringkv.kernels.decode_attend_turbo4 import MIN_STEP as _MIN_STEP
from ringkv.kernels.decode_attend_turbo4 import UNIT as _UNIT
from ringkv.kernels.gpu.hadamard import rotate
from ringkv.kernels.gpu.levels import level_of
from ringkv.kernels.gpu.nibbles import elements_of
from ringkv.kernels.gpu.random_signs import random_signs
from ringkv.kernels.half_scales import MAX_HALF as _MAX_HALF
from ringkv.kernels.half_scales import MIN_HALF as _MIN_HALF

MAX_INT8, MAX_E4M3, MAX_INT4 = tl.constexpr(float(_MAX_INT8)), tl.constexpr(_MAX_E4M3), tl.constexpr(float(_MAX_INT4))
MIN_HALF, MAX_HALF = tl.constexpr(_MIN_HALF), tl.constexpr(_MAX_HALF)
CLIP, CLIPPED_STEP = tl.constexpr(_CLIP), tl.constexpr(_CLIP / _MAX_INT4)
UNIT, MIN_STEP = tl.constexpr(_UNIT), tl.constexpr(_MIN_STEP)
ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2**23: a sum with it has no bits below 1
SMALLEST_NORMAL, SUBNORMALS = tl.constexpr(2.0**-6), tl.constexpr(2.0**9)  # of e4m3; subnormal codes per unit


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
def store_fp8(vector, vectors_at, scales_at, place, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    """Store e4m3 bytes [D] and a float16 scale at entry `place`. Vectors are not rotated."""
    column = tl.arange(0, COLUMNS)
    largest = tl.max(tl.abs(vector), 0) + _nan_of(vector)
    scale = half_scale(tl.div_rn(largest, MAX_E4M3))
    scaled = clamp(tl.div_rn(vector, tl.zeros_like(vector) + scale.to(tl.float32)), -MAX_E4M3, MAX_E4M3)
    tl.store(vectors_at + place * WIDTH + column, _e4m3(scaled), mask=column < WIDTH)
    tl.store(scales_at + place, scale)


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
def store_turbo4(vector, vectors_at, norms_at, place, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    """Store 16-bit words [D / 4] of four places in the codebook, and a float16 norm, at entry `place`."""
    column = tl.arange(0, COLUMNS)
    rotated = rotate(vector * random_signs(column, WIDTH), COLUMNS, STAGES)
    norm = tl.sqrt(_sum_of_squares(rotated, WIDTH, COLUMNS, STAGES))
    of_width = tl.sqrt(tl.full((), WIDTH, tl.float64)) * UNIT
    step = clamp((norm / of_width).to(tl.float32), MIN_STEP, float("inf"))
    places = _nearest_levels(tl.div_rn(rotated, tl.zeros_like(rotated) + step))
    levels = level_of(places)
    chosen = tl.sum(tl.where(column < WIDTH, levels * levels, 0), 0).to(tl.float64)
    _store_nibbles(places, vectors_at, place, WIDTH, COLUMNS)
    corrected = (norm * of_width / tl.sqrt(chosen)).to(tl.float32)
    tl.store(norms_at + place, clamp(corrected, -MAX_HALF, MAX_HALF).to(tl.float16))


@triton.jit
def _sum_of_squares(vector, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    """Return float64, summed in the order of the torch function: halves are added until they are odd."""
    ODD: tl.constexpr = WIDTH >> STAGES
    PADDED: tl.constexpr = COLUMNS >> STAGES
    at = tl.arange(0, COLUMNS)
    squares = tl.gather(vector, at // PADDED * ODD + at % PADDED, 0).to(tl.float64)
    squares = squares * squares
    for stage in tl.static_range(STAGES):
        first, second = tl.split(tl.permute(tl.reshape(squares, (2, COLUMNS >> stage + 1)), (1, 0)))
        squares = first + second
    column, total = tl.arange(0, PADDED), tl.zeros((), tl.float64)
    for one in tl.static_range(ODD):
        total += tl.sum(tl.where(column == one, squares, 0.0), 0)
    return total


@triton.jit
def _nearest_levels(vector):
    """Return the places of the levels nearest to the elements, the lower of two."""
    places = tl.zeros_like(vector).to(tl.int32)
    for place in tl.static_range(1, 16):
        bound = (level_of(tl.full((), place, tl.int32)) + level_of(tl.full((), place - 1, tl.int32))) * 0.5
        places += tl.where(vector <= bound, 0, 1)
    return places


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


@triton.jit
def _e4m3(vector):
    """Round float32 of at most 448 to e4m3, ties to even, as bytes; in integers, since chips before 8.9 lack it."""
    bits = vector.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    subnormal = rounded(tl.abs(vector) * SUBNORMALS).to(tl.uint32)
    code = tl.where(tl.abs(vector) < SMALLEST_NORMAL, subnormal, normal)
    return (tl.minimum(code, 0x7F) | (bits >> 24 & 0x80)).to(tl.uint8)  # 0x7F is NaN
