"""Body: cache memory as rows of entries. A row is a slot, a staging lane, or a block of the prefix store.

L layers of a group, R rows, H key-value heads, C entries per row, D elements of a vector.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.formats.earlier import Earlier
from ringkv.cache.formats.registry import storage
from ringkv.cache.formats.storage import Allocate
from ringkv.kernels.encoded_attend import NO_KEY

Planes = tuple[Tensor, ...]
"""Keys [L, H, n, D], and values unless they are a part of the keys; each is followed by its scales, if it has any."""

ALL = slice(None)
Entries = slice | Tensor
"""Entries of a row: a contiguous slice, or indices int64 [n]."""
Leaving = dict[int, Tensor]
"""Of a row that is reviewed: by layer, the entries that were chosen to be evicted, int64 [H, N], until they are."""


@dataclass(frozen=True)
class Body:
    """The planes of one group of layers in their storage formats, keys first."""

    group: LayerGroup
    planes: Planes  # [L, R, H, C, D] each; scales [L, R, H, C]
    beside: Planes = ()  # [L, R, ...] each; of encoded keys the centers, float32 [L, R, H, W], see `StorageFormat`

    @classmethod
    def allocate(cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate) -> "Body":
        """`allocate` makes a tensor from a shape; it decides the device, the initial contents and the plain dtype."""
        return cls(group, new_planes(group, rows, entries, allocate), new_centers(group, rows, allocate))

    @property
    def device(self) -> torch.device:
        return self.planes[0].device

    @property
    def rows(self) -> int:
        return self.planes[0].shape[1]

    @property
    def entries(self) -> int:
        """C, entries per row."""
        return self.planes[0].shape[3]

    @property
    def bytes(self) -> int:
        return sum(plane.nbytes for plane in (*self.planes, *self.beside))

    @property
    def file_bytes(self) -> int:
        """Bytes in files, which `bytes` leaves out."""
        return 0

    @property
    def host_bytes(self) -> int:
        """Bytes in the host's memory beside a GPU, which `bytes` leaves out."""
        return 0

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry, all layers."""
        return sum(plane.nbytes for plane in self.planes) // (self.rows * self.entries)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, all layers."""
        return self.bytes // self.rows

    def settle(self) -> None:
        """Wait until the host can read the entries that steps have written."""

    def place(self, row: int, layout: Layout) -> None:
        """Note the layout of a row that was filled, if attention needs more of it than `Slots` has."""

    def note(self, row: int, tokens: Tensor) -> None:
        """Note which tokens the entries of a row that was filled hold, int64 [L, H, n], if its reviews need them."""

    def review(self, row: int, layout: Layout, seen: int, choice: KVChoice, leaving: Leaving) -> None:
        """Review a row that has seen so many tokens; only a `ReviewedBody` can."""
        raise AssertionError("nothing watches these rows")

    def layer(self, index: int) -> Planes:
        """Return one layer's planes [R, H, C, D] and centers [R, H, W], the arguments of its graph."""
        return tuple(plane[index] for plane in (*self.planes, *self.beside))

    def take(
        self,
        row: int,
        source: "Body",
        source_row: int,
        index: Tensor,
        fixed: int = 0,
        saliency: Tensor | None = None,
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """Fill a row with entries int64 [L, H, n] of a plain body's row, encoded; entries after them become 0.

        fixed: so many first entries will not be overwritten. Their keys may be kept exactly. saliency: float32
        [L, H, n], for `ZipBody` and `WatchedBody` alone. earlier: of each plane, the entries that an earlier turn has
        encoded, if there are any.
        """
        parts, end = len(self.planes) // len(source.planes), max(self._reach(row), index.shape[-1])
        for at, (plane, theirs) in enumerate(zip(self.group.spec.planes, source.planes, strict=True)):
            own = [tensor[:, row, :, :end] for tensor in self.planes[at * parts : (at + 1) * parts]]
            center = self.centers[at][:, row] if at < len(self.centers) else None
            storage(plane).take(theirs, source_row, index, own, center, fixed, earlier[at] if earlier else None)

    def _reach(self, row: int) -> int:
        """Return how many first entries of a row may not be 0."""
        return self.entries

    def read(self, row: int, entries: Entries) -> Planes:
        """Return these entries of a row, the same in every layer and head; a view if they are a slice."""
        rows = (plane[:, row] for plane in self.planes)
        if isinstance(entries, slice):
            return tuple(row[:, :, entries] for row in rows)
        return tuple(row.index_select(2, entries) for row in rows)

    def lengths(self, row: int, live: int) -> Tensor | None:
        """Return int64 [L, H] on the CPU, how many entries each head of a row with `live` entries has.

        None if all have as many.
        """
        return None

    def in_order(self, row: int, order: Tensor, fixed: int) -> Tensor:
        """Return where a row's planes have its entries, in an order int64 [m] that begins with 0 .. fixed-1."""
        return order

    def parts(self, row: int, live: int) -> Planes:
        """Return everything that a row with `live` entries stores, as views."""
        return (*self.read(row, slice(live)), *(center[:, row] for center in self.beside))

    @property
    def centers(self) -> Planes:
        """Of encoded keys the centers [L, R, H, W], which `beside` has."""
        return self.beside[: len(storage(self.group.spec.key).beside)]

    def copy(self, rows: Tensor, entries: Tensor) -> Planes:
        """Return copies of entries int64 [N, n] of rows int64 [N], all layers and heads: [N, n, L, H, D] each."""
        return tuple(plane[:, rows[:, None], :, entries] for plane in self.planes)

    def put_back(self, rows: Tensor, entries: Tensor, copies: Planes, mask: Tensor) -> None:
        """Write back the copies that `copy` returned, if `mask` bool [N, n]; the other entries stay as they are."""
        at = slice(None), rows[:, None], slice(None), entries
        for plane, copy in zip(self.planes, copies, strict=True):
            broadcast = mask.view(*mask.shape, *[1] * (copy.dim() - 2))
            plane[at] = torch.where(broadcast, copy, plane[at])

    def write(self, row: int, first: int, planes: Planes, layers: slice = ALL) -> None:
        """Copy n entries of these layers to a row, starting at its entry `first`."""
        for ours, new in zip(self.planes, planes, strict=True):
            ours[layers, row, :, first : first + new.shape[2]] = new

    def move(self, row: int, first: int, to: int, count: int) -> None:
        """Copy n entries of a row to its entry `to`. The places may overlap; memory grows by one layer's entries."""
        for layer in (layer for plane in self.planes for layer in plane[:, row]):
            layer[:, to : to + count] = layer[:, first : first + count].clone()

    def compact(self, row: int, first: int, kept: Tensor) -> None:
        """Move entries first + `kept`, int64 [L, H, n], of each layer and head to its entry `first` and those after it.

        Memory grows by one layer's entries.
        """
        for plane in self.planes:
            for layer, own in zip(plane[:, row, :, first:], kept, strict=True):
                layer[:, : own.shape[1]] = layer.gather(1, own[..., None].expand(-1, -1, layer.shape[2]))

    def clear(self, row: int, first: int) -> None:
        """Set the entries of a row from `first` on to 0, so that no NaN is left where a masked product meets it."""
        for plane in self.planes:
            plane[:, row, :, first:] = 0


def new_planes(group: LayerGroup, rows: int, entries: int, allocate: Allocate) -> Planes:
    shapes = [(plane, (len(group.layers), rows, plane.heads, entries, plane.width)) for plane in group.spec.planes]
    return tuple(one for plane, shape in shapes for one in storage(plane).allocate(shape, allocate))


def new_centers(group: LayerGroup, rows: int, allocate: Allocate) -> Planes:
    """Return the centers of encoded keys; none of plain ones."""
    key = group.spec.key
    if not storage(key).beside:
        return ()
    centers = allocate((len(group.layers), rows, key.heads, key.center_width), dtype=torch.float32)
    centers[..., key.width :] = NO_KEY
    return (centers,)


class WholeRows(Body):
    """Rows that are whole slots: they are filled, exported and restored, and only decode attention changes them."""

    def parts(self, row: int, live: int) -> Planes:
        return tuple(tensor[:, row] for tensor in (*self.planes, *self.beside))

    def clear(self, row: int, first: int) -> None:
        """Do nothing: a row is restored whole, and entries that were not filled are not read."""


class Span(NamedTuple):
    """Where a lane is in a body: its entry i is the body's entry i + shift. Entries below `low` are no longer there."""

    shift: int = 0
    low: int = 0


class CacheRow(NamedTuple):
    """One row of every group's body: a whole slot, or a lane of the staging, which has `size` entries."""

    bodies: tuple[Body, ...]
    at: int
    spans: tuple[Span, ...] = ()  # one per group; none: the row's own entries
    size: int | None = None  # None: all of the row

    @property
    def entries(self) -> int:
        """Entries per row, the fewest of all groups."""
        return min(body.entries for body in self.bodies) if self.size is None else self.size

    def read(self, entries: Entries) -> list[Planes]:
        """Return these entries of each group."""
        return [self.read_group(group, entries) for group in range(len(self.bodies))]

    def read_group(self, group: int, entries: Entries) -> Planes:
        """Return these entries of one group."""
        shift, low = self._span(group)
        assert isinstance(entries, Tensor) or (entries.start or 0) >= low, "these entries are no longer in the row"
        return self.bodies[group].read(self.at, _shifted(entries, shift))

    def write_group(self, group: int, first: int, planes: Planes, layers: slice = ALL) -> None:
        """Copy entries of these layers of a group, starting at entry `first`, except those below the group's span."""
        shift, low = self._span(group)
        below = max(0, low - first)
        own = tuple(plane[:, :, below:] for plane in planes)
        self.bodies[group].write(self.at, first + below + shift, own, layers)

    def fill(
        self,
        slot: "CacheRow",
        sources: Sequence[Tensor],
        fixed: Sequence[int],
        saliency: Sequence[Tensor | None],
        earlier: Sequence[Sequence[Earlier]] = (),
    ) -> None:
        """Fill the rows of a slot with these entries of each group int64 [L, H, n]; see `Body.take`."""
        each = zip(self.bodies, sources, fixed, saliency, strict=True)
        for group, (body, source, count, salient) in enumerate(each):
            shift = self._span(group).shift
            moved = torch.where(source < 0, source, source + shift) if shift else source
            before = [one.shifted(shift) for one in earlier[group]] if earlier else ()
            slot.bodies[group].take(slot.at, body, self.at, moved, count, salient, before)

    def note(self, tokens: Iterable[Tensor]) -> None:
        """Note which tokens the entries of a slot that was filled hold, int64 [L, H, n] of each group."""
        for body, own in zip(self.bodies, tokens, strict=True):
            body.note(self.at, own)

    def _span(self, group: int) -> Span:
        return self.spans[group] if self.spans else _WHOLE

    def export(self, live: Sequence[int]) -> bytes:
        """Return the first `live` entries of each group as one packet, which `restore` accepts on any machine."""
        parts = (part for body, n in zip(self.bodies, live, strict=True) for part in body.parts(self.at, n))
        return b"".join(part.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes() for part in parts)

    def restore(self, live: Sequence[int], packet: bytes | memoryview) -> None:
        """Fill the first `live` entries of each group from a packet; the others become 0.

        Raises ValueError for a packet of another size.
        """
        targets = [part for body, n in zip(self.bodies, live, strict=True) for part in body.parts(self.at, n)]
        sizes = [target.numel() * target.element_size() for target in targets]
        if sum(sizes) != len(packet):
            raise ValueError(f"the packet has {len(packet):,} bytes; these entries take {sum(sizes):,}")
        raw = _raw(packet)
        for target, part in zip(targets, raw.split(sizes), strict=True):
            target.copy_(part.view(target.dtype).view(target.shape))
        for body, n in zip(self.bodies, live, strict=True):
            body.clear(self.at, n)


_WHOLE = Span()


def _raw(packet: bytes | memoryview) -> Tensor:
    """Return uint8 [bytes]: a view of a packet that may be written to, else a copy."""
    if not len(packet):
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(packet) if memoryview(packet).readonly else packet, dtype=torch.uint8)


def _shifted(entries: Entries, first: int) -> Entries:
    if not first:
        return entries
    if isinstance(entries, Tensor):
        return entries + first
    assert entries.stop is not None
    return slice((entries.start or 0) + first, entries.stop + first)
