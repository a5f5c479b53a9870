# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Places of a latent's elements in the order in which kernels load them: each word's elements follow each other.

D elements of a latent. From D on, places mean nothing.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.nibbles import CHUNK, CHUNK_WORDS


@triton.jit
def in_order(elements, WIDTH: tl.constexpr):
    """Return the places of bytes: of neighbours in a word."""
    return elements


@triton.jit
def by_nibble(elements, WIDTH: tl.constexpr):
    """Return the places of nibbles; `kernels.int4` explains their chunks."""
    chunk = elements // CHUNK
    words = tl.maximum(tl.minimum(WIDTH // 4 - chunk * CHUNK_WORDS, CHUNK_WORDS), 1)  # of this chunk
    within = elements - chunk * CHUNK
    return chunk * CHUNK + within % words * 4 + within // words
