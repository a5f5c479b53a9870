"""StoredRow: entries of a row in host memory, in the format of the row. Loading them into a lane decodes them.

L layers of a group, H key-value heads, n entries.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.cache.body import ALL, Body, Entries, Planes
from ringkv.cache.earlier import Earlier
from ringkv.cache.filling import decode
from ringkv.cache.rows import CacheRow


@dataclass(eq=False)
class Blocks:
    """memory: uint8 [blocks, bytes of a block]. numbers: the row's blocks, in order; none once it is dropped."""

    memory: Tensor
    numbers: list[int]

    def write(self, tensors: Iterable[Tensor]) -> None:
        """Write the elements of tensors, one after the other. A tensor that lies in one block has no copy."""
        first = 0
        for tensor in tensors:
            parts = list(self._parts(first, tensor.nbytes))
            first += tensor.nbytes
            if _is_view(parts, tensor.dtype):
                parts[0].view(tensor.dtype).view(tensor.shape).copy_(tensor)
                continue
            elements = tensor.contiguous().flatten().view(torch.uint8)
            for part, written in zip(parts, elements.split([len(part) for part in parts]), strict=True):
                part.copy_(written)

    def read(self, first: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Return the tensor whose bytes begin at `first`: a view if it lies in one block, else a copy."""
        parts = list(self._parts(first, prod(shape) * dtype.itemsize))
        read = parts[0] if _is_view(parts, dtype) else torch.cat([*parts, self.memory.new_empty(0)])
        return read.view(dtype).view(shape)

    def _parts(self, first: int, size: int) -> Iterator[Tensor]:
        """Yield so many bytes from `first` on, uint8 [n] of each block that has some of them."""
        block, stop = self.memory.shape[1], first + size
        while first < stop:
            offset = first % block
            count = min(stop - first, block - offset)
            yield self.memory[self.numbers[first // block], offset : offset + count]
            first += count


def _is_view(parts: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Return whether the bytes are in one place that can be read as elements of a dtype."""
    return len(parts) == 1 and parts[0].storage_offset() % dtype.itemsize == 0


class StoredTensor(NamedTuple):
    """Where the bytes of a tensor [L, ...] are among those of a row."""

    first: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.first + prod(self.shape) * self.dtype.itemsize

    def read(self, blocks: Blocks, layers: slice = ALL) -> Tensor:
        """Return these layers of the tensor; a view if they are in one block."""
        first, stop, _ = layers.indices(self.shape[0])
        rest = self.shape[1:]
        return blocks.read(self.first + first * prod(rest) * self.dtype.itemsize, self.dtype, (stop - first, *rest))


class StoredGroup(NamedTuple):
    """The tensors of a group of layers: planes [L, H, n, ...], and the centers of encoded keys [L, H, W].

    lengths: int64 [L, H], how many entries ragged heads have, whose planes are [1, 1, all entries, D], head after head.
    Entries count from the first of the longest head. Shorter ones begin later, so that all end together; 0 is before.
    """

    group: LayerGroup
    planes: tuple[StoredTensor, ...]
    centers: StoredTensor | None
    lengths: Tensor | None

    @property
    def stop(self) -> int:
        """The byte after its last."""
        return (self.centers or self.planes[-1]).stop

    def decoded(self, blocks: Blocks, layers: range, entries: int, device: torch.device) -> Planes:
        """Return the vectors of the first `entries` in these layers, [layers, H, entries, D] of each plane."""
        if self.lengths is not None:
            each = (partial(self._heads, blocks, stored, entries=entries) for stored in self.planes)
            return tuple(torch.stack([heads(layer) for layer in layers]).to(device) for heads in each)
        span = slice(layers.start, layers.stop)
        centers = None if self.centers is None else self.centers.read(blocks, span).to(device)
        tensors = [stored.read(blocks, span)[:, :, :entries].to(device) for stored in self.planes]
        return tuple(
            decode(plane, [tensors[part] for part in self._parts(index)], None if index else centers)
            for index, plane in enumerate(self.group.spec.planes)
        )

    def _heads(self, blocks: Blocks, stored: StoredTensor, layer: int, entries: int) -> Tensor:
        """Return the first `entries` of the ragged heads of a layer, [H, entries, D]."""
        assert self.lengths is not None
        lengths, width, cut = self.lengths[layer].tolist(), stored.shape[-1], int(self.lengths.max()) - entries
        first = stored.first + int(self.lengths[:layer].sum()) * width * stored.dtype.itemsize
        rows = blocks.read(first, stored.dtype, (sum(lengths), width))
        ending = rows.new_zeros(len(lengths), entries, width)
        for head, vectors in enumerate(rows.split(lengths)):
            ending[head, entries + cut - len(vectors) :] = vectors[: len(vectors) - cut]
        return ending

    def earlier(self, blocks: Blocks, entries: int, device: torch.device) -> tuple[Earlier, ...]:
        """Return the first `entries` of each plane for the slots that continue from them; none if they are plain."""
        if self.centers is None:
            return ()
        centers = self.centers.read(blocks).to(device, copy=True)
        return tuple(
            Earlier(0, entries, None if plane else centers, partial(self._layer, blocks, plane))
            for plane in range(len(self.group.spec.planes))
        )

    def _layer(self, blocks: Blocks, plane: int, layer: int) -> Sequence[Tensor]:
        """Return a layer's tensors of one plane, none if the row was dropped."""
        if not blocks.numbers:
            return ()
        return [self.planes[part].read(blocks, slice(layer, layer + 1))[0] for part in self._parts(plane)]

    def _parts(self, plane: int) -> range:
        """Return which tensors a plane has."""
        each = len(self.planes) // len(self.group.spec.planes)
        return range(plane * each, (plane + 1) * each)


class StoredRow(NamedTuple):
    blocks: Blocks
    groups: tuple[StoredGroup, ...]

    def load(self, target: CacheRow, first: int, entries: int) -> tuple[Sequence[Earlier], ...]:
        """Copy the first `entries` to a plain row, starting at its entry `first`, decoded.

        A row in several blocks is read layer by layer, to keep the temporary vectors few. Returns what `CacheRow.fill`
        takes of a lane that begins with these entries, group by group.
        """
        for index, (stored, body) in enumerate(zip(self.groups, target.bodies, strict=True)):
            count = len(stored.group.layers)
            step = count if len(self.blocks.numbers) == 1 else 1
            for layer in range(0, count, step):
                planes = stored.decoded(self.blocks, range(layer, layer + step), entries, body.device)
                target.write_group(index, first, planes, slice(layer, layer + step))
        each = zip(self.groups, target.bodies, strict=True)
        return tuple(stored.earlier(self.blocks, entries, body.device) for stored, body in each)


def places(source: CacheRow, entries: int) -> tuple[StoredGroup, ...]:
    """Return where so many entries of a row's planes will be among the bytes of a row."""
    stored: list[StoredGroup] = []
    for body in source.bodies:
        stored.append(_stored(body, source.row, entries, stored[-1].stop if stored else 0))
    return tuple(stored)


def _stored(body: Body, row: int, entries: int, first: int) -> StoredGroup:
    shapes = [(plane.dtype, (plane.shape[0], plane.shape[2], entries, *plane.shape[4:])) for plane in body.planes]
    if (centers := body.slots.centers) is not None:
        shapes.append((centers.dtype, (centers.shape[0], *centers.shape[2:])))
    tensors: list[StoredTensor] = []
    for dtype, shape in shapes:
        tensors.append(StoredTensor(tensors[-1].stop if tensors else first, dtype, shape))
    lengths = body.lengths(row, entries // (len(body.group.layers) * body.group.spec.key.heads))
    planes = len(body.planes)
    return StoredGroup(body.group, tuple(tensors[:planes]), tensors[planes] if centers is not None else None, lengths)


def tensors(source: CacheRow, entries: Entries) -> Iterator[Tensor]:
    """Yield the elements of these entries in the order of `places`: views of a slice, else copies of one layer each."""
    for index, body in enumerate(source.bodies):
        if isinstance(entries, slice):
            yield from source.read_group(index, entries)
        else:
            order = entries.to(body.planes[0].device)  # beside a GPU they may be in the host's memory
            yield from (layer.index_select(1, order) for plane in body.planes for layer in plane[:, source.row])
        if body.slots.centers is not None:
            yield body.slots.centers[:, source.row]
