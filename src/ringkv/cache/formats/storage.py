"""StorageFormat: how a plane is stored, filled from staging, and read by decode attention.

L layers of a group, R rows, H key-value heads, C entries per row, D elements of a vector.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.formats.earlier import Earlier
from ringkv.kernels.encoded_attend import NO_KEY, Encoding, with_first
from ringkv.kernels.partial import Partial
from ringkv.kernels.take_rows import take_rows

Allocate = Callable[..., Tensor]
"""Makes a tensor from a shape and an optional `dtype`; it decides the device and the initial contents."""


ENCODED_AT_ONCE = 8192
"""Entries of a head: encoding all 131,072 of Llama's would take gigabytes of a GPU's memory."""
BY_ROW = ((0,),)
"""One tensor beside the planes, with a part for each row."""


class StorageFormat(NamedTuple):
    """One way to store a plane, as this many `tensors`.

    beside: for each tensor of rows beside the planes, the dimensions whose size differs between engines. Encoded keys
    have one: a center of their row and head, which is subtracted from keys before they are stored, and the keys of the
    first entries, exactly, minus the center. `ZipBody`, `HeadsBody`, `PagesBody` and `WatchedBody` have others.
    allocate: shape (L, R, H, C, D) -> the tensors of a plane, each [L, R, H, C, ...].
    take: `Body.take` for one plane; sets its centers [L, H, W], if it has any.
    decode: the tensors of a plane's first entries, [L, H, n, ...] each, and its centers -> vectors [L, H, n, D].
    attend: see `decode_attend`. After v come the tensors of both planes, and those beside them.
    Without k and v it attends to what another layer has written. Latents have no v, and one plane.
    prefetch: fetches what a layer's step will probably read, for predicted queries; None if all is where steps read it.
    After q come the tensors of both planes, those beside them, slot, live and scale.
    """

    tensors: int
    beside: tuple[tuple[int, ...], ...]
    allocate: Callable[[Sequence[int], Allocate], tuple[Tensor, ...]]
    take: Callable[[Tensor, int, Tensor, Sequence[Tensor], Tensor | None, int, Earlier | None], None]
    decode: Callable[[Sequence[Tensor], Tensor | None], Tensor]
    attend: Callable[..., Partial]
    prefetch: Callable[..., Tensor] | None = None


class Part(NamedTuple):
    """One tensor of an encoded plane: its dtype, and its shape of one vector of D elements."""

    dtype: torch.dtype
    shape: Callable[[int], tuple[int, ...]]


def encoded(encoding: Encoding, parts: Sequence[Part], attend: Callable[..., Partial]) -> StorageFormat:
    """Return the format whose vectors are encoded one by one, minus their center."""
    take, decode = partial(_take, encoding), partial(_decode, encoding)
    return StorageFormat(len(parts), BY_ROW, partial(_allocate, parts), take, decode, attend)


def _allocate(parts: Sequence[Part], shape: Sequence[int], allocate: Allocate) -> tuple[Tensor, ...]:
    *entries, width = shape
    return tuple(allocate((*entries, *part.shape(width)), dtype=part.dtype) for part in parts)


def _take(
    encoding: Encoding,
    staged: Tensor,
    row: int,
    index: Tensor,
    target: Sequence[Tensor],
    centers: Tensor | None,
    fixed: int,
    earlier: Earlier | None,
) -> None:
    """Encode some entries of a layer at a time, to keep temporaries few.

    The center becomes the mean of the vectors, or stays that of earlier entries.
    """
    heads, count = index.shape[1:]
    vectors = staged.new_empty(1, heads, count, staged.shape[-1])
    for layer in range(len(index)):
        take_rows(staged[layer : layer + 1], row, index[layer : layer + 1], vectors)
        taken = vectors[0].float()
        if centers is not None:
            center, *first = centers[layer].unflatten(-1, (-1, taken.shape[-1])).unbind(1)
            center[:] = _center(taken, layer, earlier)
            taken -= center[:, None]
            for at, exact in enumerate(first):
                exact[:] = taken[:, at] if at < min(count, fixed) else NO_KEY
        for some in (slice(at, min(at + ENCODED_AT_ONCE, count)) for at in range(0, count, ENCODED_AT_ONCE)):
            for plane, new in zip(target, encoding.encode(taken[:, some]), strict=True):
                plane[layer, :, some] = new
        for plane in target:
            plane[layer, :, count:] = 0
        if earlier is not None:
            earlier.put_back(layer, index[layer], [plane[layer] for plane in target])


def _center(taken: Tensor, layer: int, earlier: Earlier | None) -> Tensor:
    """Return the center [H, D] of a layer's keys [H, n, D]."""
    if earlier is not None and earlier.centers is not None:
        return earlier.centers[layer, :, : taken.shape[-1]]
    return taken.sum(1) / max(1, taken.shape[1])


def _decode(encoding: Encoding, tensors: Sequence[Tensor], centers: Tensor | None) -> Tensor:
    elements, scales = tensors
    vectors: Tensor = encoding.decode(elements, scales)
    if centers is None:
        return vectors
    center, first = centers.split([vectors.shape[-1], centers.shape[-1] - vectors.shape[-1]], -1)
    decoded: Tensor = with_first(vectors, first) + center[..., None, :]
    return decoded
