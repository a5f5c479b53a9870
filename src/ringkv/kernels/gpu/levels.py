# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Levels of turbo4's codebook in float16, from the 16-bit words in which places in it are loaded.

PACKED: two words are in a register, and PTX looks up four places at once. `prmt` selects bytes by the lower three bits
of a place; if the highest bit is set it repeats the sign of the byte instead, which is 0 here. So one look-up finds the
magnitudes of places below 8, and one with highest bits inverted those of the others. Triton's interpreter has no PTX.
"""

import triton
import triton.language as tl

from ringkv.kernels.decode_attend_turbo4 import UPPER_LEVELS

UPPER = tl.constexpr(int.from_bytes(bytes(UPPER_LEVELS), "little"))  # a byte each; their highest bits are 0
TWO_OF_EACH = tl.constexpr("=r,=r,r")


def _ptx(two: str) -> tl.constexpr:
    """Return the instructions for two of each word's places, those in the bytes that `two` selects."""
    upper, lower = bytes(UPPER_LEVELS), bytes(reversed(UPPER_LEVELS))
    tables = [int.from_bytes(half, "little") for table in (lower, upper) for half in (table[:4], table[4:])]
    lookups = "mov.b32 v, {}", "prmt.b32 t, v, {}, t", "mov.b32 v, {}", "prmt.b32 u, v, {}, u"
    instructions = (
        *(f"prmt.b32 t, $2, 0, {two}", "xor.b32 u, t, 0x8888"),
        *(one.format(table) for one, table in zip(lookups, tables, strict=True)),
        *("sub.u32 t, u, t", "add.u32 t, t, 0x80808080"),  # no byte borrows from the next one
        *("mov.b32 v, 0x64646464", "prmt.b32 u, t, v, 0x4240", "prmt.b32 t, t, v, 0x4341"),
        *("mov.b32 v, 0x64806480", "sub.rn.f16x2 $0, u, v", "sub.rn.f16x2 $1, t, v"),  # 128 is in the low bits of 1024
    )
    return tl.constexpr("{ .reg .b32 t, u, v; " + " ".join(f"{one};" for one in instructions) + " }")


PTX_LEVELS_0_1, PTX_LEVELS_2_3 = _ptx("0x4420"), _ptx("0x4431")


@triton.jit
def level_of(place):
    """Return the level, int32, of a place from 0 to 15."""
    at = tl.where(place < 8, 7 - place, place - 8)
    magnitude = (tl.full((), UPPER, tl.int64) >> (8 * at).to(tl.int64) & 0xFF).to(tl.int32)
    return tl.where(place < 8, -magnitude, magnitude)


@triton.jit
def levels_0_1(words, PACKED: tl.constexpr):
    """Return the levels of a word's two lowest places."""
    if PACKED:
        return tl.inline_asm_elementwise(PTX_LEVELS_0_1, TWO_OF_EACH, [words], (tl.float16, tl.float16), True, 2)
    places = words.to(tl.int32)
    return level_of(places & 15).to(tl.float16), level_of(places >> 4 & 15).to(tl.float16)


@triton.jit
def levels_2_3(words, PACKED: tl.constexpr):
    """Return the levels of a word's two highest places."""
    if PACKED:
        return tl.inline_asm_elementwise(PTX_LEVELS_2_3, TWO_OF_EACH, [words], (tl.float16, tl.float16), True, 2)
    return levels_0_1(words >> 8, PACKED)
