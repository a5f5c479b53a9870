"""page_index: what rows in pages have beside their planes: digests, pins and counts, see `kernels.slots.Pages`.

Such rows hold every token, of which a step reads some pages. Half of the pages that a step may select are pinned: those
that the prompt's selector votes for, as ArkVale's first resident pages are. The others are recalled by their digests.

L layers of a group, R rows, H key-value heads, C entries per row in P pages, N places for pages on a GPU, D elements of
a vector.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup, PageFormat
from ringkv.base.kv import Layout
from ringkv.base.page_counts import EVERYTHING, PageCounts
from ringkv.cache.compress.kept import top_votes
from ringkv.cache.filling import ENCODED_AT_ONCE, Kept
from ringkv.kernels.pages import digest
from ringkv.kernels.slots import Allocate, Pages, Residents

ReadVectors = Callable[[int, int, slice], Tensor]
"""Plane, layer, entries -> the vectors [H, n, D] of a row; keys minus their center if they have one."""


def allocate(group: LayerGroup, settings: PageFormat, rows: int, entries: int, new: Allocate) -> Pages:
    """Return the tensors of rows with so many entries, [L, R, ...] each."""
    layers, key = len(group.layers), group.spec.key
    first, pages = (layers, rows, key.heads), entries // settings.size
    return Pages(
        digests=new((*first, pages, 2, key.width)),
        pins=new((*first, pages), dtype=torch.float32),
        counts=aligned(new, (layers, rows, 3)),
        residents=_residents(group, settings, rows, pages, new) if settings.resident else None,
    )


def _residents(group: LayerGroup, settings: PageFormat, rows: int, pages: int, new: Allocate) -> Residents:
    """A row that was filled has no pages on the GPU: the first step recalls those that its queries select."""
    first, places = (len(group.layers), rows, group.spec.key.heads), settings.resident
    keys, values = (new((*first, places * settings.size, plane.width)) for plane in group.spec.planes)
    return Residents(
        keys,
        values,
        place_of=aligned(new, (*first, pages)),
        page_in=aligned(new, (*first, places)),
        fetched=aligned(new, first),
    )


def aligned(new: Allocate, shape: tuple[int, ...]) -> Tensor:
    """Return int32 [L, ...] whose layers begin at multiples of 16 bytes: a GPU's graph copies others in each step."""
    layers, *rest = shape
    numbers = math.prod(rest)
    padded: Tensor = new((layers, -(-numbers // 4) * 4), dtype=torch.int32)
    tensor: Tensor = padded[:, :numbers].unflatten(1, rest)
    return tensor


def reach(pages: Pages, row: int, size: int) -> int:
    """Return how many first entries of a row may not be 0, in pages of so many.

    Each page that was full has a digest, and at most one page after the last of them has entries. Slots are large, and
    of those in files each page that is written is written to the disk.
    """
    has_digest = pages.digests[0, row].ne(0).flatten(2).any(-1).any(0).nonzero()
    count = int(has_digest[-1]) + 1 if len(has_digest) else 0
    return (count + 1) * size


def note(pages: Pages, row: int, layer: int, settings: PageFormat, length: int, read: ReadVectors) -> None:
    """Note the digests of the whole pages of a row's `length` entries in a layer."""
    size, stop = settings.size, length // settings.size * settings.size
    step = ENCODED_AT_ONCE if settings.resident else max(1, stop)  # keys of a host's memory: a part at a time
    digests = pages.digests[layer, row]
    for first in range(0, stop, step):
        keys = read(0, layer, slice(first, min(first + step, stop)))
        new = digest(keys.unflatten(1, (-1, size)))
        digests[:, first // size : first // size + new.shape[1]] = new
    digests[:, stop // size :] = 0


def note_votes(pages: Pages, row: int, size: int, kept: Kept) -> None:
    """Note in `pins` the votes of a row's pages of so many entries."""
    pages.pins[:, row] = 0
    if kept.saliency is not None:
        votes = F.pad(kept.saliency, (0, -kept.length % size)).unflatten(-1, (-1, size)).sum(-1)
        pages.pins[:, row, :, : votes.shape[-1]] = votes


def place(pages: Pages, row: int, size: int, layout: Layout) -> None:
    """Note how many pages a step reads, and pin those with the most votes, which `note_votes` has left in `pins`."""
    held, counts = -(-layout.live(layout.prompt) // size), PageCounts.of(layout, size)
    for column, count in enumerate(counts or EVERYTHING):
        pages.counts[:, row, column] = count
    if pages.residents is not None:
        pages.residents.place_of[:, row] = pages.residents.page_in[:, row] = -1
    votes = pages.pins[:, row].clone()
    pages.pins[:, row] = float("-inf")
    if counts:
        between = slice(counts.leading, max(counts.leading, held - counts.newest))
        pages.pins[:, row, :, between] = _pinned(votes[..., between], counts.pinned)


def _pinned(votes: Tensor, count: int) -> Tensor:
    """Return the pins of pages by their votes [L, H, P]: `count` of each head, or all if there are fewer."""
    if not 0 < count < votes.shape[-1]:
        return torch.full_like(votes, float("inf" if count else "-inf"))
    best = top_votes(votes.flatten(0, 1), count).view(*votes.shape[:2], count)
    return torch.full_like(votes, float("-inf")).scatter_(-1, best, float("inf"))


def fill_on_host(planes: tuple[Tensor, ...], row: int, layer: int, kept: Kept) -> None:
    """Copy a layer's entries to a row in the host's memory, in parts; those after them stay: none of them is read."""
    for plane, target in enumerate(planes):
        for first in range(0, kept.length, ENCODED_AT_ONCE):
            taken = kept.taken(plane, layer, slice(first, first + ENCODED_AT_ONCE))
            for head, vectors in enumerate(taken):
                target[layer, row, head, first : first + len(vectors)].copy_(vectors)
