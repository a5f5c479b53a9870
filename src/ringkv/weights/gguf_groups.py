"""Groups: the matrices that a GGUF stores in four bits a weight, as they are.

32 numbers of a row share a scale and a least value: weight = scale * q + least, q in 0 .. 15. That is what Q4_1 says;
Q4_0 has its zero at q = 8; in Q4_K scales and least values are numbers of six bits, times two of a superblock of 256.
Source: the block layouts in ggml's quantisation header.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
GROUP = 32


class StoredGroups(NamedTuple):
    """[out, in] in four bits: `q` uint8 [out, in / 2], of each two the first in the lower half of a byte.

    `scale` and `least`: float16 [out, in / 32].
    """

    q: Bytes
    scale: npt.NDArray[np.float16]
    least: npt.NDArray[np.float16]


def groups(kind: str, rows: Bytes) -> StoredGroups:
    """Rows of a tensor of a type in `KINDS`, uint8 [out, bytes of a row]."""
    block_bytes, read = KINDS[kind]
    q, scale, least = read(rows.reshape(len(rows), -1, block_bytes))
    low, high = np.moveaxis(q.reshape(len(rows), -1, 2), -1, 0)
    numbers = (one.reshape(len(rows), -1).astype("<f2") for one in (scale, least))
    return StoredGroups(low | np.left_shift(high, np.uint8(4)), *numbers)


Read = tuple[Bytes, npt.NDArray[np.float32], npt.NDArray[np.float32]]


def _q4_0(blocks: Bytes) -> Read:
    """A scale; 16 bytes."""
    scale = _float(blocks[..., :2])
    return _halves(blocks[..., 2:]), scale, -8 * scale


def _q4_1(blocks: Bytes) -> Read:
    """A scale, a least value; 16 bytes."""
    return _halves(blocks[..., 4:]), _float(blocks[..., :2]), _float(blocks[..., 2:4])


def _q4_k(blocks: Bytes) -> Read:
    """A scale of scales and one of least values; 8 of each in 12 bytes; 4 times the bytes of two groups."""
    from gguf.quants import Q4_K

    of_scales, of_least = _float(blocks[..., :2]), _float(blocks[..., 2:4])
    scales, least = Q4_K.get_scale_min(np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12))
    shape = (*blocks.shape[:2], -1)
    q = _halves(blocks[..., 16:].reshape(*shape, GROUP))
    return q, of_scales * scales.reshape(shape), -of_least * least.reshape(shape)


KINDS: Mapping[str, tuple[int, Callable[[Bytes], Read]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q4_K": (144, _q4_k),
}
"""Bytes of a block, and what reads blocks [out, n, bytes]: q, and a scale and a least value for each group."""


def _float(two: Bytes) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(two).view("<f2").astype(np.float32)


def _halves(packed: Bytes) -> Bytes:
    """All lower halves of each stretch of bytes, then all upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)
