# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Scores of a tile's keys of 4 bits an element, before the softmax's scale, by how a nibble stands for an element.

D elements of a vector. Queries are [D / 4, ROWS], one for each nibble of a word.
"""

import triton
import triton.language as tl

from ringkv.kernels.decode_attend_turbo4 import UNIT as _UNIT
from ringkv.kernels.gpu.elements import OFFSET, nibble_0, nibble_1, nibble_2, nibble_3
from ringkv.kernels.gpu.levels import levels_0_1, levels_2_3
from ringkv.kernels.gpu.nibbles import low_half

UNIT = tl.constexpr(_UNIT)


@triton.jit
def uniform_scores(
    words,  # int16 [BLOCK, COLUMNS]
    ranges,  # int32 [BLOCK]: scale and minimum in float16
    q0,
    q1,
    q2,
    q3,
    sums,  # of each query's elements, [ROWS]
    WIDTH: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Return scores [BLOCK, ROWS] of keys whose elements are scale * nibble + minimum."""
    steps = low_half(ranges)
    scores = tl.dot(nibble_0(words, PACKED).to(q0.dtype), q0, input_precision="ieee")
    scores = tl.dot(nibble_1(words, PACKED).to(q0.dtype), q1, scores, input_precision="ieee")
    scores = tl.dot(nibble_2(words, PACKED).to(q0.dtype), q2, scores, input_precision="ieee")
    scores = tl.dot(nibble_3(words, PACKED).to(q0.dtype), q3, scores, input_precision="ieee")
    return scores * steps[:, None] + sums[None, :] * (low_half(ranges >> 16) - OFFSET * steps)[:, None]


@triton.jit
def codebook_scores(
    words,
    norms,  # float16 [BLOCK]
    q0,
    q1,
    q2,
    q3,
    sums,  # not used
    WIDTH: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Return scores [BLOCK, ROWS] of keys whose elements are levels of turbo4's codebook."""
    first, second = levels_0_1(words, PACKED)
    scores = tl.dot(first.to(q0.dtype), q0, input_precision="ieee")
    scores = tl.dot(second.to(q0.dtype), q1, scores, input_precision="ieee")
    first, second = levels_2_3(words, PACKED)
    scores = tl.dot(first.to(q0.dtype), q2, scores, input_precision="ieee")
    scores = tl.dot(second.to(q0.dtype), q3, scores, input_precision="ieee")
    return scores * (norms.to(tl.float32) * (WIDTH**-0.5 / UNIT))[:, None]
