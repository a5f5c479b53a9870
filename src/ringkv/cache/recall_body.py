"""RecallBody: slots in pages, all of which are in the host's memory and some of them on a GPU.

L layers of a group, R rows, H key-value heads, C entries per row in P pages, N places for pages, D elements of a
vector.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.cache_spec import FETCH_COUNTS, LayerGroup
from ringkv.base.kv import Layout
from ringkv.cache.body import Body, Entries, Planes
from ringkv.cache.formats.earlier import Earlier
from ringkv.cache.formats.storage import ENCODED_AT_ONCE, Allocate
from ringkv.cache.pages_body import PagesBody, aligned, pages_of
from ringkv.kernels.decode_attend_pages import digest
from ringkv.kernels.take_rows import take_rows


@dataclass(frozen=True)
class RecallBody(PagesBody):
    """Planes are in the host's memory. Beside them, on the GPU, are what a `PagesBody` has, and the `Residents` of
    `decode_attend_recall`: keys and values [L, R, H, N * page, D], maps int32 [L, R, H, P] and [L, R, H, N], prefetched
    places int32 [L, R, H, N] and counts of fetched pages int32 [L, R, H, FETCH_COUNTS].

    A row that was filled has no pages on the GPU: the first step recalls those that its queries select.
    """

    @classmethod
    def allocate(
        cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate, tier: Allocate | None = None
    ) -> "RecallBody":
        paged = PagesBody.allocate(group, rows, entries, allocate, tier)
        pages, heads = pages_of(group), group.spec.key.heads
        first = len(group.layers), rows, heads
        planes = (allocate((*first, pages.resident * pages.size, plane.width)) for plane in group.spec.planes)
        counts = entries // pages.size, pages.resident, pages.resident, FETCH_COUNTS
        maps = (aligned(allocate, (*first, count)) for count in counts)
        return cls(group, paged.planes, (*paged.beside, *planes, *maps))

    @property
    def device(self) -> torch.device:
        """The GPU, where steps run."""
        return self.digests.device

    @property
    def digests(self) -> Tensor:
        return self.beside[0]

    @property
    def pins(self) -> Tensor:
        return self.beside[1]

    @property
    def counts(self) -> Tensor:
        return self.beside[2]

    @property
    def fetched(self) -> Tensor:
        return self.beside[-1]

    @property
    def bytes(self) -> int:
        """Bytes on the GPU."""
        return sum(one.nbytes for one in self.beside)

    @property
    def host_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes)

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def take(
        self,
        row: int,
        source: Body,
        source_row: int,
        index: Tensor,
        fixed: int = 0,
        saliency: Tensor | None = None,
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """Fill a row. Entries after those of `index` stay as they are: none of them is read."""
        page, by_means = pages_of(self.group)[:2]
        for at, (plane, staged) in enumerate(zip(self.planes, source.planes, strict=True)):
            for layer, first, taken in _taken(staged, source_row, index):
                for head, vectors in enumerate(taken):
                    plane[layer, row, head, first : first + len(vectors)].copy_(vectors)
                if at == 0:
                    whole = taken.shape[1] // page
                    own = digest(taken[:, : whole * page].unflatten(1, (whole, page)), by_means)
                    self.digests[layer, row, :, first // page : first // page + whole] = own
        self._note_selection(row)
        self._note_votes(row, saliency)

    def place(self, row: int, layout: Layout) -> None:
        super().place(row, layout)
        *_, place_of, page_in, prefetched, _ = self.beside
        place_of[:, row] = page_in[:, row] = -1
        prefetched[:, row] = 0

    def read(self, row: int, entries: Entries) -> Planes:
        return super().read(row, entries if isinstance(entries, slice) else entries.to(self.planes[0].device))

    def parts(self, row: int, live: int) -> Planes:
        """Return what a `PagesBody` stores."""
        return (*self.read(row, slice(live)), *(one[:, row] for one in self.beside[:3]))

    def clear(self, row: int, first: int) -> None:
        """Do nothing: entries without a token are not read."""


def _taken(staged: Tensor, row: int, index: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Yield a layer, a first entry, and vectors [H, n, D] from there on: entries int64 [L, H, count] of a staged row.

    They are few enough to have little temporary memory.
    """
    layers, heads, count = index.shape
    for layer in range(layers):
        for first in range(0, count, ENCODED_AT_ONCE):
            some = index[layer : layer + 1, :, first : first + ENCODED_AT_ONCE]
            taken = staged.new_empty(1, heads, some.shape[2], staged.shape[-1])
            take_rows(staged[layer : layer + 1], row, some, taken)
            yield layer, first, taken[0]
