"""The matrices of a GGUF in 5, 6 or 8 bits, without dequantising them.

    weight = scale * multiple * q + least * least_multiple

32 elements of a row share a scale, and a minimum in Q5_1 and Q5_K. Q6_K has a multiple for each 16. Factors are float16
and all others are integers as the file has them, so no element is rounded.
Source: the block layouts in ggml's quantisation header.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringkv.weights.gguf.groups import Bytes, halves
from ringkv.weights.group_layout import GROUP

Array = npt.NDArray[Any]
SUPERBLOCK = 256  # elements that share the factors of a K type


class StoredBytes(NamedTuple):
    """A matrix [out, in]: q int8 [out, in], scale float16 [out, in / 32], multiple int8 [out, in / 16].

    least, least_multiple: float16 and int8 [out, in / 32]; None for types without minimums.
    """

    q: Array
    scale: Array
    multiple: Array
    least: Array | None = None
    least_multiple: Array | None = None


def byte_groups(kind: str, rows: Bytes) -> StoredBytes:
    """Split rows of a tensor of a type in `KINDS`, uint8 [out, bytes of a row]."""
    one = KINDS[kind]
    found = one.unpack(rows.reshape(len(rows), -1, one.block_bytes))
    return StoredBytes(*(part.reshape(len(rows), -1) for part in found))


def _q8_0(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale and 32 signed bytes."""
    return blocks[..., 2:].view(np.int8), _half(blocks[..., :2]), _ones(blocks, 2)


def _q5_0(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale, 32 fifth bits and 16 bytes; its zero is q = 16."""
    q = _fifth_bits(blocks[..., 2:6]) + _halves(blocks[..., 6:]) - 16
    return q, _half(blocks[..., :2]), _ones(blocks, 2)


def _q5_1(blocks: Bytes) -> Sequence[Array]:
    """A block is a scale, a minimum, 32 fifth bits and 16 bytes."""
    q = _fifth_bits(blocks[..., 4:8]) + _halves(blocks[..., 8:])
    return q, _half(blocks[..., :2]), _ones(blocks, 2), _half(blocks[..., 2:4]), _ones(blocks, 1)


def _q5_k(blocks: Bytes) -> Sequence[Array]:
    """A block is a factor of scales and one of minimums; 8 of each in 12 bytes; a fifth bit of each group; q."""
    from gguf.quants import Q4_K  # Q5_K's scales have its layout

    found = Q4_K.get_scale_min(np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12))
    scales, minimums = (one.reshape(*blocks.shape[:2], -1).astype(np.int8) for one in found)
    groups = np.arange(SUPERBLOCK // GROUP, dtype=np.uint8)[:, None]
    fifth = (blocks[..., None, 16:48] >> groups & 1).astype(np.int8) * 16
    q = fifth + _halves(blocks[..., 48:].reshape(*blocks.shape[:2], -1, GROUP)).reshape(fifth.shape)
    scale, least = (np.repeat(_half(blocks[..., at : at + 2]), len(groups), -1) for at in (0, 2))
    return q, scale, np.repeat(scales, 2, -1), -least, minimums


def _q6_k(blocks: Bytes) -> Sequence[Array]:
    """A block is 128 bytes of lower halves, 64 bytes of upper pairs of bits, 16 scales and their factor."""
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64) >> np.array([[0], [4]], np.uint8) & 15
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> shifts & 3
    q = (low.reshape(high.shape) | high << 4).astype(np.int8) - 32
    scale = np.repeat(_half(blocks[..., 208:]), SUPERBLOCK // GROUP, -1)
    return q, scale, blocks[..., 192:208].view(np.int8)


class Kind(NamedTuple):
    """A type of tensors: bytes of a block, whether groups have minimums, and what unpacks blocks [out, n, bytes]."""

    block_bytes: int
    has_minimums: bool
    unpack: Callable[[Bytes], Sequence[Array]]


KINDS: Mapping[str, Kind] = {
    "Q8_0": Kind(34, False, _q8_0),
    "Q5_0": Kind(22, False, _q5_0),
    "Q5_1": Kind(24, True, _q5_1),
    "Q5_K": Kind(176, True, _q5_k),
    "Q6_K": Kind(210, False, _q6_k),
}


def _half(two: Bytes) -> Array:
    return np.ascontiguousarray(two).view("<f2")


def _ones(blocks: Bytes, count: int) -> Array:
    return np.ones((*blocks.shape[:2], count), np.int8)


def _halves(packed: Bytes) -> Array:
    return halves(packed).view(np.int8)


def _fifth_bits(four: Bytes) -> Array:
    """Return 16 for each bit that is set of 32, and 0 for the others; the lowest bit is first."""
    return np.unpackbits(np.ascontiguousarray(four), axis=-1, bitorder="little").astype(np.int8) * 16
