# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Elements of encoded vectors, from the 16-bit words in which they are loaded: what they are, and where.

As float16 each bit pattern has a power of two's exponent, and the element in its mantissa: integers need no conversion.
PACKED: two words are in a register, and PTX instructions process both, which Triton's compiler would do one by one.
Triton's interpreter has no PTX.

`kernels.int4` packs nibbles, and explains their chunks. D elements of a vector, in D / 4 words of nibbles.
"""

import triton
import triton.language as tl

from ringkv.kernels.constants import CHUNK as _CHUNK

CHUNK, CHUNK_WORDS = tl.constexpr(_CHUNK), tl.constexpr(_CHUNK // 4)
OFFSET = tl.constexpr(16.0)  # of nibbles in float16
MIDDLE = tl.constexpr(7.5)  # of the levels
TWO = tl.constexpr("=r,r")


def _ptx(*instructions: str) -> str:
    return "{ .reg .b32 t, u; " + " ".join(f"{instruction};" for instruction in instructions) + " }"


_INT8 = "lop3.b32 t, t, 0x00FF00FF, 0x64806480, 0x6A", "mov.b32 u, 0x64806480", "sub.rn.f16x2 $0, t, u"  # (a & b) ^ c
_NIBBLE = "lop3.b32 $0, t, 0x03C003C0, 0x4C004C00, 0xEA"  # a & b | c
PTX_INT8 = tl.constexpr((_ptx("mov.b32 t, $1", *_INT8), _ptx("shr.b32 t, $1, 8", *_INT8)))
_SHIFTS = "shl.b32 t, $1, 6", "shl.b32 t, $1, 2", "shr.b32 t, $1, 2", "shr.b32 t, $1, 6"
PTX_NIBBLE = tl.constexpr(tuple(_ptx(shift, _NIBBLE) for shift in _SHIFTS))


@triton.jit
def int8_of(words, PART: tl.constexpr, PACKED: tl.constexpr):
    """Return the int8 in the low or the high byte, float16; 1152 more of it is in the low bits of 1024."""
    if PACKED:
        return tl.inline_asm_elementwise(PTX_INT8[PART], TWO, [words], tl.float16, True, 2)
    return (words >> 8 * PART & 0xFF ^ 0x6480).to(tl.float16, bitcast=True) - 1152.0


@triton.jit
def nibble_of(words, PART: tl.constexpr, PACKED: tl.constexpr):
    """Return a nibble plus OFFSET, float16; that of part 0 is the lowest."""
    if PACKED:
        return tl.inline_asm_elementwise(PTX_NIBBLE[PART], TWO, [words], tl.float16, True, 2)
    return (words >> 4 * PART << 6 & 0x3C0 | 0x4C00).to(tl.float16, bitcast=True)


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
