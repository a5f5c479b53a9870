"""The four-bit matrices of a GGUF, without dequantising them.

32 elements of a row share a scale and a minimum: weight = scale * q + minimum, q in 0 .. 15. Q4_1 stores both. Q4_0 has
its zero at q = 8. Q4_K stores 6-bit scales and minimums, each multiplied by a factor of its superblock of 256.
Source: the block layouts in ggml's quantisation header.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringkv.weights.group_layout import GROUP

Bytes = npt.NDArray[np.uint8]


class StoredGroups(NamedTuple):
    """A four-bit matrix [out, in]: `q` uint8 [out, in / 2], two elements per byte, the first in the lower half.

    `scale` and `minimum`: float16 [out, in / 32].
    """

    q: Bytes
    scale: npt.NDArray[np.float16]
    minimum: npt.NDArray[np.float16]


def groups(kind: str, rows: Bytes) -> StoredGroups:
    """Split rows of a tensor of a type in `KINDS`, uint8 [out, bytes of a row]."""
    block_bytes, unpack = KINDS[kind]
    q, scale, minimum = unpack(rows.reshape(len(rows), -1, block_bytes))
    low, high = np.moveaxis(q.reshape(len(rows), -1, 2), -1, 0)
    halves = (values.reshape(len(rows), -1).astype("<f2") for values in (scale, minimum))
    return StoredGroups(low | np.left_shift(high, np.uint8(4)), *halves)


Unpacked = tuple[Bytes, npt.NDArray[np.float32], npt.NDArray[np.float32]]


def _q4_0(blocks: Bytes) -> Unpacked:
    """A block is a scale and 16 bytes."""
    scale = _float(blocks[..., :2])
    return halves(blocks[..., 2:]), scale, -8 * scale


def _q4_1(blocks: Bytes) -> Unpacked:
    """A block is a scale, a minimum and 16 bytes."""
    return halves(blocks[..., 4:]), _float(blocks[..., :2]), _float(blocks[..., 2:4])


def _q4_k(blocks: Bytes) -> Unpacked:
    """A block is a factor of scales and one of minimums; 8 of each in 12 bytes; 4 times the bytes of two groups."""
    from gguf.quants import Q4_K

    scale_factor, minimum_factor = _float(blocks[..., :2]), _float(blocks[..., 2:4])
    scales, minimums = Q4_K.get_scale_min(np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12))
    shape = (*blocks.shape[:2], -1)
    q = halves(blocks[..., 16:].reshape(*shape, GROUP))
    return q, scale_factor * scales.reshape(shape), -minimum_factor * minimums.reshape(shape)


KINDS: Mapping[str, tuple[int, Callable[[Bytes], Unpacked]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q4_K": (144, _q4_k),
}
"""Bytes of a block, and the function that unpacks blocks [out, n, bytes]: q, and each group's scale and minimum."""


def _float(two: Bytes) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(two).view("<f2").astype(np.float32)


def halves(packed: Bytes) -> Bytes:
    """Return the lower halves of each run of bytes, then the upper halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)
