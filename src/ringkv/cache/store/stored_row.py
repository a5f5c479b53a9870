"""StoredRow: entries of a row in host memory, in the format of the row. Loading them into a lane decodes them.

L layers of a group, H key-value heads, n entries.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.cache.body import ALL, Body, Entries, Planes
from ringkv.cache.earlier import Earlier
from ringkv.cache.filling import decode
from ringkv.cache.rows import CacheRow
from ringkv.cache.store.run import Run


class Place(NamedTuple):
    """Where a tensor [L, ...] is in a run."""

    at: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def read(self, run: Run, layers: slice = ALL) -> Tensor:
        """Return these layers of the tensor; a view if they are in one block."""
        first, stop, _ = layers.indices(self.shape[0])
        rest = self.shape[1:]
        return run.read(self.at + first * prod(rest) * self.dtype.itemsize, self.dtype, (stop - first, *rest))


class Stored(Protocol):
    """The entries of a group of layers in a run of bytes."""

    @property
    def layers(self) -> int: ...

    @property
    def stop(self) -> int:
        """The byte after its last."""

    def decoded(self, run: Run, layers: slice, entries: int, device: torch.device) -> Planes:
        """Return the vectors of the first `entries` in these layers, [layers, H, entries, D] of each plane."""

    def earlier(self, run: Run, entries: int, device: torch.device) -> tuple[Earlier, ...]:
        """Return the first `entries` of each plane for the slots that continue from them; none if they are plain."""


class StoredGroup(NamedTuple):
    """The tensors of a group of layers: planes [L, H, n, ...], and the centers of encoded keys [L, H, W]."""

    group: LayerGroup
    planes: tuple[Place, ...]
    centers: Place | None

    @property
    def layers(self) -> int:
        return self.planes[0].shape[0]

    @property
    def stop(self) -> int:
        last = self.centers or self.planes[-1]
        return last.at + last.bytes

    def decoded(self, run: Run, layers: slice, entries: int, device: torch.device) -> Planes:
        centers = None if self.centers is None else self.centers.read(run, layers).to(device)
        tensors = [place.read(run, layers)[:, :, :entries].to(device) for place in self.planes]
        return tuple(
            decode(plane, [tensors[part] for part in self._parts(at)], None if at else centers)
            for at, plane in enumerate(self.group.spec.planes)
        )

    def earlier(self, run: Run, entries: int, device: torch.device) -> tuple[Earlier, ...]:
        if self.centers is None:
            return ()
        centers = self.centers.read(run).to(device, copy=True)
        return tuple(
            Earlier(0, entries, None if at else centers, partial(self._layer, run, at))
            for at in range(len(self.group.spec.planes))
        )

    def _layer(self, run: Run, at: int, layer: int) -> Sequence[Tensor]:
        """Return a layer's tensors of one plane, none if the run was dropped."""
        if not run.blocks:
            return ()
        return [self.planes[part].read(run, slice(layer, layer + 1))[0] for part in self._parts(at)]

    def _parts(self, at: int) -> range:
        """Return which tensors a plane has."""
        each = len(self.planes) // len(self.group.spec.planes)
        return range(at * each, (at + 1) * each)


class StoredHeads(NamedTuple):
    """Planes [1, 1, all entries, D] of a group of layers whose heads have `lengths` int64 [L, H], head after head.

    Entries count from the first of the longest head. Shorter ones begin later, so that all end together; 0 is before.
    """

    planes: tuple[Place, ...]
    lengths: Tensor

    @property
    def layers(self) -> int:
        return len(self.lengths)

    @property
    def stop(self) -> int:
        return self.planes[-1].at + self.planes[-1].bytes

    def decoded(self, run: Run, layers: slice, entries: int, device: torch.device) -> Planes:
        cut = int(self.lengths.max()) - entries
        each = range(*layers.indices(self.layers))
        return tuple(
            torch.stack([self._ending_together(run, place, layer, cut) for layer in each]).to(device)
            for place in self.planes
        )

    def earlier(self, run: Run, entries: int, device: torch.device) -> tuple[Earlier, ...]:
        return ()

    def _ending_together(self, run: Run, place: Place, layer: int, cut: int) -> Tensor:
        """Return [H, n - cut, D], the heads of a layer without their last `cut` entries."""
        lengths, width = self.lengths[layer].tolist(), place.shape[-1]
        first, entries = int(self.lengths[:layer].sum()), int(self.lengths.max()) - cut
        rows = run.read(place.at + first * width * place.dtype.itemsize, place.dtype, (sum(lengths), width))
        found = rows.new_zeros(len(lengths), entries, width)
        for head, own in enumerate(rows.split(lengths)):
            found[head, entries + cut - len(own) :] = own[: len(own) - cut]
        return found


class StoredRow(NamedTuple):
    run: Run
    groups: tuple[Stored, ...]

    def load(self, target: CacheRow, first: int, entries: int) -> None:
        """Copy the first `entries` to a plain row, starting at its entry `first`, decoded.

        A run of several blocks is read layer by layer, to keep the temporary vectors few.
        """
        for at, own in enumerate(self.groups):
            device, step = target.bodies[at].device, own.layers if len(self.run.blocks) == 1 else 1
            for layer in range(0, own.layers, step):
                layers = slice(layer, layer + step)
                target.write_group(at, first, own.decoded(self.run, layers, entries, device), layers)

    def earlier(self, target: CacheRow, entries: int) -> tuple[Sequence[Earlier], ...]:
        """Return what `CacheRow.fill` takes of a lane whose first `entries` were loaded, group by group."""
        each = zip(self.groups, target.bodies, strict=True)
        return tuple(own.earlier(self.run, entries, body.device) for own, body in each)


def places(source: CacheRow, entries: int) -> tuple[Stored, ...]:
    """Return where so many entries of a row's planes will be in a run."""
    found: list[Stored] = []
    for body in source.bodies:
        found.append(_stored(body, source.at, entries, found[-1].stop if found else 0))
    return tuple(found)


def run_bytes(groups: Sequence[Stored]) -> int:
    """Return the bytes of a run."""
    return groups[-1].stop


def _stored(body: Body, row: int, entries: int, at: int) -> Stored:
    own, count = list(_places(body, entries, at)), len(body.planes)
    layers, heads = len(body.group.layers), body.group.spec.key.heads
    lengths = body.lengths(row, entries // (layers * heads))
    if lengths is not None:
        return StoredHeads(tuple(own), lengths)
    return StoredGroup(body.group, tuple(own[:count]), own[count] if own[count:] else None)


def tensors(source: CacheRow, entries: Entries) -> Iterator[Tensor]:
    """Yield the elements of these entries in the order of `places`: views of a slice, else copies of one layer each."""
    for at, body in enumerate(source.bodies):
        if isinstance(entries, slice):
            yield from source.read_group(at, entries)
        else:
            own = entries.to(body.planes[0].device)  # beside a GPU they may be in the host's memory
            yield from (layer.index_select(1, own) for plane in body.planes for layer in plane[:, source.at])
        if body.slots.centers is not None:
            yield body.slots.centers[:, source.at]


def _places(body: Body, entries: int, at: int) -> Iterator[Place]:
    planes = ((plane.dtype, (plane.shape[0], plane.shape[2], entries, *plane.shape[4:])) for plane in body.planes)
    centers = () if body.slots.centers is None else (body.slots.centers,)
    of_centers = ((center.dtype, (center.shape[0], *center.shape[2:])) for center in centers)
    for dtype, shape in (*planes, *of_centers):
        place = Place(at, dtype, shape)
        yield place
        at += place.bytes
