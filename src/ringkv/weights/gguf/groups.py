"""The matrices of a GGUF in 4, 5, 6 or 8 bits, without dequantising them.

    int4   weight = scale * q + minimum, q in 0 .. 15
    int8   weight = scale * multiple * q + least * least_multiple

32 elements of a row share a scale, and a minimum if their type has one. Q4_0 has its zero at q = 8. Types that end with
K have superblocks of 256 elements: integer scales and minimums of their groups, and a float16 factor of each. Q6_K has
a scale for each 16 elements. In int8, factors are float16 and all others are integers as the file has them, so no
element is rounded. In int4, a scale or a minimum of Q4_K is rounded to float16.
Source: the block layouts in ggml's quantisation header.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringkv.weights.group_layout import GROUP, INT4, INT8, GroupLayout

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
SUPERBLOCK = 256  # elements that share the factors of a K type


class GroupedType(NamedTuple):
    """A type of tensors: the layout of its parts, the bytes of a block, and what splits blocks [out, n, bytes].

    has_minimums: whether its groups have the parts that not every matrix has.
    """

    layout: GroupLayout
    block_bytes: int
    split: Callable[[Bytes], Sequence[Array]]
    has_minimums: bool = False

    @property
    def parts(self) -> Mapping[str, tuple[str, int]]:
        """The parts by name, in the order of `split`, as `GroupLayout` has them."""
        return {**self.layout.parts, **(self.layout.more if self.has_minimums else {})}


def split(type: str, rows: Bytes) -> list[Array]:
    """Split rows of a tensor of a type in `TYPES`, uint8 [out, bytes of a row], into parts [out, ...]."""
    parts = TYPES[type].split(rows.reshape(len(rows), -1, TYPES[type].block_bytes))
    return [part.reshape(len(rows), -1) for part in parts]


def _q4_0(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale and 16 bytes."""
    scale = _half(blocks[..., :2])
    return in_pairs(halves(blocks[..., 2:])), scale, (-8 * scale.astype(np.float32)).astype("<f2")


def _q4_1(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale, a minimum and 16 bytes."""
    return in_pairs(halves(blocks[..., 4:])), _half(blocks[..., :2]), _half(blocks[..., 2:4])


def _q4_k(blocks: Bytes) -> Sequence[Array]:
    """A block is a factor of scales and one of minimums; 8 of each in 12 bytes; 4 times the bytes of two groups."""
    factors = (_half(blocks[..., first : first + 2]).astype(np.float32) for first in (0, 2))
    scale, least = (factor * integers for factor, integers in zip(factors, _scales(blocks), strict=True))
    q = halves(blocks[..., 16:].reshape(*blocks.shape[:2], -1, GROUP))
    return in_pairs(q), scale.astype("<f2"), (-least).astype("<f2")


def _q8_0(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale and 32 signed bytes."""
    return blocks[..., 2:].view(np.int8), _half(blocks[..., :2]), _ones(blocks, 2)


def _q5_0(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale, 32 fifth bits and 16 bytes; its zero is q = 16."""
    q = _fifth_bits(blocks[..., 2:6]) + halves(blocks[..., 6:]).view(np.int8) - 16
    return q, _half(blocks[..., :2]), _ones(blocks, 2)


def _q5_1(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale, a minimum, 32 fifth bits and 16 bytes."""
    q = _fifth_bits(blocks[..., 4:8]) + halves(blocks[..., 8:]).view(np.int8)
    return q, _half(blocks[..., :2]), _ones(blocks, 2), _half(blocks[..., 2:4]), _ones(blocks, 1)


def _q5_k(blocks: Bytes) -> Sequence[Array]:
    """A block is a factor of scales and one of minimums; 8 of each in 12 bytes; a fifth bit of each group; q."""
    scales, minimums = (each.astype(np.int8) for each in _scales(blocks))
    groups = np.arange(SUPERBLOCK // GROUP, dtype=np.uint8)[:, None]
    fifth = (blocks[..., None, 16:48] >> groups & 1).astype(np.int8) * 16
    q = fifth + halves(blocks[..., 48:].reshape(*blocks.shape[:2], -1, GROUP)).view(np.int8).reshape(fifth.shape)
    scale, least = (np.repeat(_half(blocks[..., first : first + 2]), len(groups), -1) for first in (0, 2))
    return q, scale, np.repeat(scales, 2, -1), -least, minimums


def _q6_k(blocks: Bytes) -> Sequence[Array]:
    """A block is 128 bytes of lower halves, 64 bytes of upper pairs of bits, 16 scales and their factor."""
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64) >> np.array([[0], [4]], np.uint8) & 15
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> shifts & 3
    q = (low.reshape(high.shape) | high << 4).astype(np.int8) - 32
    scale = np.repeat(_half(blocks[..., 208:]), SUPERBLOCK // GROUP, -1)
    return q, scale, blocks[..., 192:208].view(np.int8)


TYPES: Mapping[str, GroupedType] = {
    "Q4_0": GroupedType(INT4, 18, _q4_0),
    "Q4_1": GroupedType(INT4, 20, _q4_1),
    "Q4_K": GroupedType(INT4, 144, _q4_k),
    "Q8_0": GroupedType(INT8, 34, _q8_0),
    "Q5_0": GroupedType(INT8, 22, _q5_0),
    "Q5_1": GroupedType(INT8, 24, _q5_1, has_minimums=True),
    "Q5_K": GroupedType(INT8, 176, _q5_k, has_minimums=True),
    "Q6_K": GroupedType(INT8, 210, _q6_k),
}


def _scales(blocks: Bytes) -> Sequence[Bytes]:
    """Return the integer scales and minimums, [out, n, 8] each, of blocks of Q4_K or Q5_K."""
    from gguf.quants import Q4_K

    both = Q4_K.get_scale_min(np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12))
    return [each.reshape(*blocks.shape[:2], -1) for each in both]


def _half(two: Bytes) -> Array:
    return np.ascontiguousarray(two).view("<f2")


def _ones(blocks: Bytes, count: int) -> Array:
    return np.ones((*blocks.shape[:2], count), np.int8)


def _fifth_bits(four: Bytes) -> Array:
    """Return 16 for each bit that is set of 32, and 0 for the others; the lowest bit is first."""
    return np.unpackbits(np.ascontiguousarray(four), axis=-1, bitorder="little").astype(np.int8) * 16


def halves(packed: Bytes) -> Bytes:
    """Return the lower halves of each run of bytes, then the upper halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def in_pairs(elements: Bytes) -> Bytes:
    """Return two elements a byte, the earlier in the lower half."""
    return elements[..., ::2] | elements[..., 1::2] << np.uint8(4)
