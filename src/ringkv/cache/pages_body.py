"""PagesBody: slots that hold every token, of which a step reads some pages.

Half of the pages that a step may choose are pinned: those that the prompt's selector votes for, as ArkVale's first
resident pages are. The others are recalled by their digests.

L layers of a group, R rows, H key-value heads, C entries per row in P pages, D elements of a vector.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.cache_spec import MEANS, LayerGroup, Pages
from ringkv.base.kv import Layout
from ringkv.base.page_counts import PageCounts
from ringkv.cache.body import Body, new_centers, new_planes
from ringkv.cache.compress.kept import top_votes
from ringkv.cache.formats.earlier import Earlier
from ringkv.cache.formats.registry import storage
from ringkv.cache.formats.storage import Allocate
from ringkv.kernels.decode_attend_pages import EVERY_PAGE, digest
from ringkv.kernels.read_ahead import read_ahead

EVERYTHING = PageCounts(EVERY_PAGE, 0, 1)


@dataclass(frozen=True)
class PagesBody(Body):
    """Beside the planes, and the centers of encoded keys, are the digests [L, R, H, P, 2, D], pins float32 [L, R, H, P]
    and counts int32 [L, R, 5] of `decode_attend_pages`, and before them the means float32 [L, R, H, MEANS, D] of
    `add_unread_pages`, if there are any. from_disk: int32 [L, R, H, FETCH_COUNTS] of planes in files, see `read_ahead`.
    """

    from_disk: Tensor | None = None

    @classmethod
    def allocate(
        cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate, tier: Allocate | None = None
    ) -> "PagesBody":
        """tier: allocates the planes, if they are not in memory like all else."""
        planes = new_planes(group, rows, entries, tier or allocate)
        layers, key = len(group.layers), group.spec.key
        pages = layers, rows, key.heads, entries // pages_of(group).size
        digests, pins = allocate((*pages, 2, key.width)), allocate(pages, dtype=torch.float32)
        counts = aligned(allocate, (layers, rows, 5))
        return cls(
            group,
            planes,
            (*new_centers(group, rows, allocate), *_means(group, rows, allocate), digests, pins, counts),
            read_ahead(planes) if tier and pages_of(group).on_disk else None,
        )

    @property
    def digests(self) -> Tensor:
        return self.beside[-3]

    @property
    def pins(self) -> Tensor:
        return self.beside[-2]

    @property
    def counts(self) -> Tensor:
        return self.beside[-1]

    @property
    def means(self) -> Tensor | None:
        return self.beside[-4] if pages_of(self.group).estimated else None

    @property
    def fetched(self) -> Tensor | None:
        """Pages that steps have fetched, int32 [L, R, H, FETCH_COUNTS]; None if all are where steps read them."""
        return self.from_disk

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return super().bytes - self.file_bytes

    @property
    def file_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes) if pages_of(self.group).on_disk else 0

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
        super().take(row, source, source_row, index, fixed, saliency, earlier)
        page, by_means = pages_of(self.group)[:2]
        whole = index.shape[-1] // page
        for layer, own in enumerate(self.digests[:, row]):
            keys = self._decoded(0, layer, row, whole * page)
            own[:, :whole] = digest(keys.unflatten(1, (whole, page)), by_means)
            own[:, whole:] = 0
            if self.means is not None:
                values = self._decoded(1, layer, row, index.shape[-1])
                self.means[layer, row, :, values.shape[1] % MEANS] = values.float().mean(1)
        self._note_selection(row)
        self._note_votes(row, saliency)

    def _reach(self, row: int) -> int:
        """Each page that was full has a digest, and at most one page after the last of them has entries.

        Slots are large, and of those in files each page that is written is written to the disk.
        """
        pages = self.digests[0, row].ne(0).flatten(2).any(-1).any(0).nonzero()
        count = int(pages[-1]) + 1 if len(pages) else 0
        return min(self.entries, (count + 1) * pages_of(self.group).size)

    def _decoded(self, plane: int, layer: int, row: int, count: int) -> Tensor:
        """Return the first vectors [H, count, D] of a row: keys, minus their center if they have one, or values."""
        spec = self.group.spec.planes[plane]
        size = len(self.planes) // len(self.group.spec.planes)
        parts = self.planes[plane * size : (plane + 1) * size]
        return storage(spec).decode([one[layer : layer + 1, row, :, :count] for one in parts], None)[0]

    def _note_selection(self, row: int) -> None:
        pages = pages_of(self.group)
        self.counts[:, row, 3], self.counts[:, row, 4] = int(pages.by_means), int(pages.by_layer)

    def _note_votes(self, row: int, saliency: Tensor | None) -> None:
        """Leave the votes of pages in `pins`, from those of entries float32 [L, H, n]."""
        page = pages_of(self.group).size
        self.pins[:, row] = 0
        if saliency is not None:
            votes = F.pad(saliency, (0, -saliency.shape[-1] % page)).unflatten(-1, (-1, page)).sum(-1)
            of_all = votes.sum(1, keepdim=True) if pages_of(self.group).by_layer else votes
            self.pins[:, row, :, : votes.shape[-1]] = of_all

    def place(self, row: int, layout: Layout) -> None:
        """Note how many pages a step reads, and pin those with the most votes, which `take` has left in `pins`."""
        size = pages_of(self.group).size
        held, counts = -(-layout.live(layout.prompt) // size), PageCounts.of(layout, size)
        for at, count in enumerate(counts or EVERYTHING):
            self.counts[:, row, at] = count
        if self.fetched is not None:
            self.fetched[:, row] = 0
        votes = self.pins[:, row].clone()
        self.pins[:, row] = float("-inf")
        if counts:
            between = slice(counts.leading, max(counts.leading, held - counts.newest))
            self.pins[:, row, :, between] = _pinned(votes[..., between], counts.pinned)


def aligned(allocate: Allocate, shape: tuple[int, ...]) -> Tensor:
    """Return int32 [L, ...] whose layers begin at multiples of 16 bytes: a GPU's graph copies others in each step."""
    layers, *own = shape
    numbers = math.prod(own)
    padded: Tensor = allocate((layers, -(-numbers // 4) * 4), dtype=torch.int32)
    found: Tensor = padded[:, :numbers].unflatten(1, own)
    return found


def _means(group: LayerGroup, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
    if not pages_of(group).estimated:
        return ()
    shape = len(group.layers), rows, group.spec.key.heads, MEANS, group.spec.value_width
    return (allocate(shape, dtype=torch.float32),)


def _pinned(votes: Tensor, count: int) -> Tensor:
    """Return the pins of pages by their votes [L, H, P]: `count` of each head, or all if there are fewer."""
    if not 0 < count < votes.shape[-1]:
        return torch.full_like(votes, float("inf" if count else "-inf"))
    best = top_votes(votes.flatten(0, 1), count).view(*votes.shape[:2], count)
    return torch.full_like(votes, float("-inf")).scatter_(-1, best, float("inf"))


def pages_of(group: LayerGroup) -> Pages:
    assert group.pages is not None
    return group.pages
