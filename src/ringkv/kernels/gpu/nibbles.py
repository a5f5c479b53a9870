# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Words of four nibbles in Triton; `kernels.int4` packs them and explains their chunks. And the orders in which kernels
load elements: those of a word follow each other.

D elements of a vector, in D / 4 words.
"""

import triton
import triton.language as tl

from ringkv.kernels.constants import CHUNK as _CHUNK

CHUNK, CHUNK_WORDS = tl.constexpr(_CHUNK), tl.constexpr(_CHUNK // 4)
MIDDLE = tl.constexpr(7.5)  # of the levels


@triton.jit
def elements_of(words, WIDTH: tl.constexpr):
    """Return the element that is the first nibble of each word of a vector, and the distance to its next nibble's.

    For words from D / 4 on, elements are below D rounded up to a power of two.
    """
    chunk = words // CHUNK_WORDS
    distance = tl.minimum(WIDTH // 4 - chunk * CHUNK_WORDS, CHUNK_WORDS)  # the words of this chunk
    return chunk * CHUNK + words % CHUNK_WORDS, distance


@triton.jit
def low_half(words):
    """Return the float16 in the low 16 bits of int32 words, in float32."""
    return (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def in_order(elements, WIDTH: tl.constexpr):
    """Return the places of bytes in the order in which they are loaded: they are neighbours in a word."""
    return elements


@triton.jit
def by_nibble(elements, WIDTH: tl.constexpr):
    """Return the places of nibbles in the order in which they are loaded. From D on, places mean nothing."""
    chunk = elements // CHUNK
    words = tl.maximum(tl.minimum(WIDTH // 4 - chunk * CHUNK_WORDS, CHUNK_WORDS), 1)  # of this chunk
    within = elements - chunk * CHUNK
    return chunk * CHUNK + within % words * 4 + within // words
