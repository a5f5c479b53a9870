# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Elements of encoded vectors, in float16, from the 16-bit words in which they are loaded.

Each bit pattern has a power of two's exponent, and the element in its mantissa: integers need no conversion. The result
is the element, or what the function's name says more. PACKED: two words are in a register, and PTX instructions process
both, which Triton's compiler would do one by one. Triton's interpreter has no PTX.
"""

import triton
import triton.language as tl

OFFSET = tl.constexpr(16.0)  # of nibbles
TWO = tl.constexpr("=r,r")


def _ptx(*instructions: str) -> tl.constexpr:
    return tl.constexpr("{ .reg .b32 t, u; " + " ".join(f"{instruction};" for instruction in instructions) + " }")


_INT8 = "lop3.b32 t, t, 0x00FF00FF, 0x64806480, 0x6A", "mov.b32 u, 0x64806480", "sub.rn.f16x2 $0, t, u"  # (a & b) ^ c
_NIBBLE = "lop3.b32 $0, t, 0x03C003C0, 0x4C004C00, 0xEA"  # a & b | c
PTX_INT8_LOW, PTX_INT8_HIGH = _ptx("mov.b32 t, $1", *_INT8), _ptx("shr.b32 t, $1, 8", *_INT8)
PTX_NIBBLE_0, PTX_NIBBLE_1 = _ptx("shl.b32 t, $1, 6", _NIBBLE), _ptx("shl.b32 t, $1, 2", _NIBBLE)
PTX_NIBBLE_2, PTX_NIBBLE_3 = _ptx("shr.b32 t, $1, 2", _NIBBLE), _ptx("shr.b32 t, $1, 6", _NIBBLE)


@triton.jit
def int8_low(words, PACKED: tl.constexpr):
    """Return the int8 in the low byte; 1152 more of it is in the low bits of 1024."""
    if PACKED:
        return tl.inline_asm_elementwise(PTX_INT8_LOW, TWO, [words], tl.float16, True, 2)
    return (words & 0xFF ^ 0x6480).to(tl.float16, bitcast=True) - 1152.0


@triton.jit
def int8_high(words, PACKED: tl.constexpr):
    """Return the int8 in the high byte."""
    if PACKED:
        return tl.inline_asm_elementwise(PTX_INT8_HIGH, TWO, [words], tl.float16, True, 2)
    return int8_low(words >> 8, PACKED)


@triton.jit
def nibble_0(words, PACKED: tl.constexpr):
    """Return the lowest nibble plus OFFSET."""
    if PACKED:
        return tl.inline_asm_elementwise(PTX_NIBBLE_0, TWO, [words], tl.float16, True, 2)
    return (words << 6 & 0x3C0 | 0x4C00).to(tl.float16, bitcast=True)


@triton.jit
def nibble_1(words, PACKED: tl.constexpr):
    if PACKED:
        return tl.inline_asm_elementwise(PTX_NIBBLE_1, TWO, [words], tl.float16, True, 2)
    return nibble_0(words >> 4, PACKED)


@triton.jit
def nibble_2(words, PACKED: tl.constexpr):
    if PACKED:
        return tl.inline_asm_elementwise(PTX_NIBBLE_2, TWO, [words], tl.float16, True, 2)
    return nibble_0(words >> 8, PACKED)


@triton.jit
def nibble_3(words, PACKED: tl.constexpr):
    if PACKED:
        return tl.inline_asm_elementwise(PTX_NIBBLE_3, TWO, [words], tl.float16, True, 2)
    return nibble_0(words >> 12, PACKED)
