# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Codes: how 16-bit words of several elements stand for vectors, as `attend_words` takes them.

Scores are [BLOCK, ROWS]; ranges are what a vector has beside its elements, [BLOCK]. A nibble n is multiplied as
n + OFFSET, and its element is scale * n + minimum, so a sum corrects for both. Weights times scales are rounded; taken
from the middle of the levels, this changes a value the least.

D elements of a vector.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ringkv.kernels.gpu.elements import MIDDLE, OFFSET, elements_of, int8_of, low_half, nibble_of


class Code(NamedTuple):
    """Triton functions.

    element: returns one element of words, see `elements`. place: returns which elements of a vector those are of
    a part of words. scores: returns those of keys, of the products of their elements and a query, of the keys' ranges,
    of the sums of the query's elements, and of a factor of each query. scales: returns those of values. shift: returns
    what is added to all elements of a weighted sum; None: nothing.
    """

    parts: int
    element: Any
    place: Any
    scores: Any
    scales: Any
    shift: Any


@triton.jit
def place_of_byte(word, PART: tl.constexpr, WIDTH: tl.constexpr):
    return 2 * word + PART


@triton.jit
def scores_of_bytes(products, scales, sums, factor):
    return products * (factor[None, :] * scales[:, None])


@triton.jit
def scales_of_bytes(scales):
    return scales


BYTES = Code(2, int8_of, place_of_byte, scores_of_bytes, scales_of_bytes, None)
"""int8 elements and a float32 scale."""


@triton.jit
def place_of_nibble(word, PART: tl.constexpr, WIDTH: tl.constexpr):
    element, distance = elements_of(word, WIDTH)
    return element + PART * distance


@triton.jit
def scores_of_nibbles(products, ranges, sums, factor):
    steps = low_half(ranges)
    lowest = low_half(ranges >> 16) - OFFSET * steps
    return (products * steps[:, None] + sums[None, :] * lowest[:, None]) * factor[None, :]


@triton.jit
def shift_of_nibbles(unscaled, weights, ranges):
    middles = unscaled * (low_half(ranges >> 16) + MIDDLE * low_half(ranges))[:, None]
    return tl.sum(middles - (OFFSET + MIDDLE) * weights.to(tl.float32), 0)


NIBBLES = Code(4, nibble_of, place_of_nibble, scores_of_nibbles, low_half, shift_of_nibbles)
"""4-bit levels, and int32 with a scale and a minimum in float16."""
