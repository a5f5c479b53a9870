"""Formats: how a plane is stored, filled from staging, and read by decode attention.

L layers of a group, R rows, H key-value heads, C entries per row, D elements of a vector.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.decode_attend_int8 import decode_attend_int8, encode
from ringkv.kernels.partial import Partial
from ringkv.kernels.take_rows import take_rows

Allocate = Callable[..., Tensor]
"""Makes a tensor from a shape and an optional `dtype`; it decides the device and the initial contents."""


class StorageFormat(NamedTuple):
    """One way to store a plane, as this many `tensors`.

    centered: a center of their row and head is subtracted from keys before they are stored.
    allocate: shape (L, R, H, C, D) -> the tensors of a plane, each [L, R, H, C, ...].
    take: `Body.take` for one plane; sets its center [L, H, D], if it has one.
    attend: see `decode_attend`. After v come the tensors of both planes, and the centers [R, H, D] if there are any.
    """

    tensors: int
    centered: bool
    allocate: Callable[[Sequence[int], Allocate], tuple[Tensor, ...]]
    take: Callable[[Tensor, int, Tensor, Sequence[Tensor], Tensor | None], None]
    attend: Callable[..., Partial]


def _plain(shape: Sequence[int], allocate: Allocate) -> tuple[Tensor, ...]:
    return (allocate(shape),)


def _take_plain(staged: Tensor, row: int, index: Tensor, target: Sequence[Tensor], _: Tensor | None) -> None:
    (vectors,) = target
    take_rows(staged, row, index, vectors)


def _int8(shape: Sequence[int], allocate: Allocate) -> tuple[Tensor, ...]:
    return allocate(shape, dtype=torch.int8), allocate(shape[:-1], dtype=torch.float32)


def _take_int8(staged: Tensor, row: int, index: Tensor, target: Sequence[Tensor], center: Tensor | None) -> None:
    """Encode layer by layer, to keep the temporary vectors few. The center becomes the mean of the vectors."""
    heads, count = index.shape[1:]
    vectors = staged.new_empty(1, heads, count, staged.shape[-1])
    for layer in range(len(index)):
        take_rows(staged[layer : layer + 1], row, index[layer : layer + 1], vectors)
        taken = vectors[0].float()
        if center is not None:
            center[layer] = taken.sum(1) / max(1, count)
            taken -= center[layer][:, None]
        for plane, new in zip(target, encode(taken), strict=True):
            plane[layer, :, :count] = new
            plane[layer, :, count:] = 0


FORMATS: Mapping[PlaneFormat, StorageFormat] = {
    "plain": StorageFormat(1, False, _plain, _take_plain, decode_attend),
    "int8": StorageFormat(2, True, _int8, _take_int8, decode_attend_int8),
}
