"""Body: cache memory as rows of entries. A row is a slot, a staging lane, or a block of the prefix store.

L layers of a group, R rows, H key-value heads, C entries per row, D elements of a vector. If heads are ragged, all of
them in all layers divide planes [1, R, 1, E, ...], and C is their average.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.kv import Layout
from ringkv.cache import page_index
from ringkv.cache.filling import Kept, encoding_of, fill, fill_heads
from ringkv.cache.steps import Steps
from ringkv.cache.watching.ledger import Ledger
from ringkv.kernels.slots import Pages, Slots, flat, mapped

Planes = tuple[Tensor, ...]
"""Keys [L, H, n, D], and values unless they are a part of the keys; each in the tensors of its encoding."""

ALL = slice(None)
Entries = slice | Tensor
"""Entries of a row: a contiguous slice, or indices int64 [n]."""


@dataclass(frozen=True)
class Body:
    """The rows of one group of layers.

    slots: what decode attention reads, [L, R, ...]. noted: what reviews note of each entry, [L, R, H, C, ...], or None
    if nothing watches the rows. from_disk: int32 [L, R, H], pages that steps have read ahead from files, or None if no
    planes are in files.
    """

    group: LayerGroup
    slots: Slots
    noted: Ledger | None = None
    from_disk: Tensor | None = None

    @property
    def planes(self) -> Planes:
        return tuple(self.slots.planes)

    @property
    def key_tensors(self) -> Planes:
        """The tensors of keys, [L, R, H, C, ...] each."""
        return next(self._by_plane())

    @property
    def pages(self) -> Pages | None:
        """Digests and all else that rows in pages have beside their planes."""
        return self.slots.reading if isinstance(self.slots.reading, Pages) else None

    @property
    def places(self) -> Tensor | None:
        """int32 [L, R, H, 2], where ragged heads are in a row."""
        return self.slots.places

    @property
    def device(self) -> torch.device:
        """Where steps run."""
        return self.pages.digests.device if self.pages else self.planes[0].device

    @property
    def rows(self) -> int:
        return self.planes[0].shape[1]

    @property
    def entries(self) -> int:
        """C, entries per row."""
        count = self.planes[0].shape[3]
        return count if self.places is None else count // (len(self.group.layers) * self.group.spec.key.heads)

    @property
    def bytes(self) -> int:
        """Bytes where steps run."""
        noted = sum(tensor.nbytes for tensor in self.noted or ())
        stored: int = sum(tensor.nbytes for tensor in flat(self.slots))
        return stored + noted - self.file_bytes - self.host_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes in files."""
        settings = self.group.slots.pages
        return sum(plane.nbytes for plane in self.planes) if settings and settings.on_disk else 0

    @property
    def host_bytes(self) -> int:
        """Bytes in the host's memory beside a GPU."""
        settings = self.group.slots.pages
        return sum(plane.nbytes for plane in self.planes) if settings and settings.resident else 0

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry, all layers."""
        return sum(plane.nbytes for plane in self.planes) // (self.rows * self.entries)

    @property
    def recalled(self) -> Tensor | None:
        """Pages that steps have recalled, int32 [L, R, H], or None if all are where steps read them."""
        residents = self.pages.residents if self.pages else None
        return residents.fetched if residents else self.from_disk

    def settle(self) -> None:
        """Wait until the host can read the entries that steps have written."""
        if self.host_bytes and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def layer(self, index: int) -> Slots:
        """Return one layer's slots, the arguments of its graph."""
        return mapped(self.slots, lambda tensor: tensor[min(index, len(tensor) - 1)])  # ragged heads share their planes

    def take(self, row: int, kept: Kept) -> Steps[None]:
        """Fill a row with entries of a staged prompt, encoded; those after them become 0 if steps might read them.

        It may pause after each layer.
        """
        if self.places is not None:
            return self._take_ragged(row, kept)
        end = max(self._reach(row), kept.length)
        for layer in range(len(kept.entries)):
            if self.host_bytes:
                page_index.fill_on_host(self.planes, row, layer, kept)
            else:
                self._take_layer(row, layer, kept, end)
            if self.pages and self.group.slots.pages:
                read = kept.taken if self.host_bytes else partial(self._decoded, row)
                page_index.note(self.pages, row, layer, self.group.slots.pages, kept.length, read)
            yield
        if self.pages and self.group.slots.pages:
            page_index.note_votes(self.pages, row, self.group.slots.pages.size, kept)

    def _take_layer(self, row: int, layer: int, kept: Kept, end: int) -> None:
        """Fill a layer of a row, and set its entries from there to `end` to 0."""
        for plane, tensors in enumerate(self._by_plane()):
            target, centers = [tensor[layer, row, :, :end] for tensor in tensors], self._centers(plane, row)
            encoding = encoding_of(self.group.spec.planes[plane])
            fill(kept, plane, layer, encoding, target, None if centers is None else centers[layer])

    def _reach(self, row: int) -> int:
        """Return how many first entries of a row may not be 0, at most."""
        if self.pages is None or self.group.slots.pages is None:
            return self.entries
        return min(self.entries, page_index.reach(self.pages, row, self.group.slots.pages.size))

    def _decoded(self, row: int, plane: int, layer: int, entries: slice) -> Tensor:
        """Return entries [H, n, D] of a layer in a row's plane: keys minus their center if they have one, or values."""
        tensors = list(self._by_plane())[plane]
        encoding = encoding_of(self.group.spec.planes[plane])
        return encoding.decode(*(tensor[layer : layer + 1, row, :, entries] for tensor in tensors))[0]

    def _take_ragged(self, row: int, kept: Kept) -> None:
        """Fill a row head after head. A head with n entries has `more` than the average of all of them."""
        assert self.places is not None
        counts = (kept.entries >= 0).sum(-1)
        more = counts - int(counts.sum()) // counts.numel()
        room = more + self.entries
        first = room.flatten().cumsum(0).view_as(room) - room
        self.places[:, row] = torch.stack((first, more), -1)
        for plane, tensors in enumerate(self._by_plane()):
            target = [tensor[0, row, 0] for tensor in tensors]
            fill_heads(kept, plane, encoding_of(self.group.spec.planes[plane]), target, room, self._centers(plane, row))

    def _by_plane(self) -> Iterator[Planes]:
        """Yield the tensors of keys, then those of values."""
        each = len(self.planes) // len(self.group.spec.planes)
        for first in range(0, len(self.planes), each):
            yield self.planes[first : first + each]

    def _centers(self, plane: int, row: int) -> Tensor | None:
        """Return the centers [L, H, W] of a row's keys, or None for values, and if the encoding has none."""
        return None if plane or self.slots.centers is None else self.slots.centers[:, row]

    def place(self, row: int, layout: Layout) -> None:
        """Note the layout of a row that was filled, if attention needs more of it than `Rings` has."""
        if self.recalled is not None:
            self.recalled[:, row] = 0
        if self.pages and self.group.slots.pages:
            page_index.place(self.pages, row, self.group.slots.pages.size, layout)

    def note(self, row: int, tokens: Tensor) -> None:
        """Note which tokens the entries of a row that was filled hold, int64 [L, H, n], if its reviews need them."""
        if self.noted:
            self.noted.positions[:, row, :, : tokens.shape[-1]] = tokens
            self.noted.counts[:, row] = 0

    def read(self, row: int, entries: Entries) -> Planes:
        """Return these entries of a row, the same in every layer and head; a view if they are a slice."""
        rows = (plane[:, row] for plane in self.planes)
        if isinstance(entries, slice):
            return tuple(plane[:, :, entries] for plane in rows)
        return tuple(plane.index_select(2, entries.to(plane.device)) for plane in rows)

    def lengths(self, row: int, live: int) -> Tensor | None:
        """Return int64 [L, H] on the CPU, how many entries each head of a row with `live` entries has.

        None if all have as many.
        """
        return None if self.places is None else self.places[:, row, :, 1].cpu().long() + live

    def in_order(self, row: int, order: Tensor, fixed: int) -> Tensor:
        """Return where a row's planes have its entries, in an order int64 [m] that begins with 0 .. fixed-1.

        Of each ragged head these are its entries before the ring, then the ring's in their order; head after head.
        """
        if self.places is None:
            return order
        heads = self.places[:, row].flatten(0, 1).tolist()
        protected = torch.arange(fixed + max(more for _, more in heads), device=order.device)
        ring = order[fixed:]
        return torch.cat([part + first for first, more in heads for part in (protected[: fixed + more], ring + more)])

    @property
    def is_whole(self) -> bool:
        """Whether a row is exported and restored whole: where its entries are is a part of it."""
        return self.places is not None

    def parts(self, row: int, live: int) -> Planes:
        """Return everything that a row with `live` entries stores, as views."""
        beside = self.slots._replace(planes=())
        if self.pages:
            beside = beside._replace(reading=self.pages._replace(residents=None))
        planes = (plane[:, row] for plane in self.planes) if self.is_whole else self.read(row, slice(live))
        noted = (tensor[:, row, :, :live] for tensor in self.noted or ())
        return (*planes, *(tensor[:, row] for tensor in flat(beside)), *noted)

    def copy(self, rows: Tensor, entries: Tensor) -> Planes:
        """Return copies of entries int64 [N, n] of rows int64 [N], all layers and heads, for `put_back`.

        If heads are ragged, the entries are in the ring.
        """
        place = self._entries_of_rows(rows, entries)
        return tuple(plane[place] for plane in self.planes)

    def put_back(self, rows: Tensor, entries: Tensor, copies: Planes, mask: Tensor) -> None:
        """Write back the copies that `copy` returned, if `mask` bool [N, n]; the other entries stay as they are."""
        place = self._entries_of_rows(rows, entries)
        first = 1 if self.places is not None else 0  # ragged heads: a dimension of layers comes before the rows
        for plane, copy in zip(self.planes, copies, strict=True):
            broadcast = mask.view(*[1] * first, *mask.shape, *[1] * (copy.dim() - 2 - first))
            plane[place] = torch.where(broadcast, copy, plane[place])

    def _entries_of_rows(self, rows: Tensor, entries: Tensor) -> tuple[slice | Tensor | int, ...]:
        """Return an index of planes: entries int64 [N, n] of rows int64 [N]."""
        if self.places is None:
            return ALL, rows[:, None], ALL, entries
        offset = self.places[:, rows].sum(-1)
        return 0, rows[:, None, None], 0, offset[:, :, None].long() + entries[..., None]

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
            for layer, index in zip(plane[:, row, :, first:], kept, strict=True):
                layer[:, : index.shape[1]] = layer.gather(1, index[..., None].expand(-1, -1, layer.shape[2]))

    def clear(self, row: int, first: int) -> None:
        """Set the entries of a row from `first` on to 0, so that no NaN is left where a masked product meets it.

        A row in pages still has the digests of what it held before. Rows that are restored whole, and those in a host's
        memory, have nothing after their entries that steps read.
        """
        if not self.is_whole and not self.host_bytes:
            for plane in self.planes:
                plane[:, row, :, first : self._reach(row)] = 0
