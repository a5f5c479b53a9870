"""Decode attention over slots whose pages are all in the host's memory, and some of them on the device too.

A step recalls the pages that it reads and that are not on the device. Each new token is written to both places.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot in P pages, R places
for pages on the device, D head_dim. Source: ArkVale (NeurIPS 2024), section 3.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.decode_attend_pages import complete, in_pages, priority, scores, selected
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.partial import Partial


class Residents(NamedTuple):
    """Pages on the device.

    keys, values [S, H, R * page, D]. place_of int32 [S, H, P]: the place of each page, or -1. page_in int32 [S, H, R]:
    the page in each place, or -1; the maps are inverse. prefetched int32 [S, H, R]: 1 for places that `prefetch_recall`
    has filled since the last attention, else 0. fetched int32 [S, H, FETCH_COUNTS]: pages that steps copied from the
    host, pages that were prefetched, and how many of these attention then read.
    """

    keys: Tensor
    values: Tensor
    place_of: Tensor
    page_in: Tensor
    prefetched: Tensor
    fetched: Tensor


def decode_attend_recall(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    host_keys: Tensor,
    host_values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    keys: Tensor,
    values: Tensor,
    place_of: Tensor,
    page_in: Tensor,
    prefetched: Tensor,
    fetched: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> Partial:
    """Do what `decode_attend_pages` does for slots [S, H, C, D], with its bits, over the entries of `Residents`.

    host_keys, host_values [S, H, C, D] are in memory that the device can address. No row may read more than R pages.
    A page that is recalled takes an empty place, else that of the page with the lowest `priority`, of equal ones the
    first, of those that the row does not read.
    """
    residents = keys, values, place_of, page_in, prefetched, fetched
    return Partial(
        *plain.operator("decode_attend_recall", q)(
            q, k, v, host_keys, host_values, digests, pins, counts, *residents, slot, entry, live, scale
        )
    )


def reference(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    host_keys: Tensor,
    host_values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    keys: Tensor,
    values: Tensor,
    place_of: Tensor,
    page_in: Tensor,
    prefetched: Tensor,
    fetched: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Implement `decode_attend_recall` in plain torch, over all C entries with a mask."""
    rows, page = slot.long(), host_keys.shape[2] // digests.shape[2]
    residents, hosts = Residents(keys, values, place_of, page_in, prefetched, fetched), (host_keys, host_values)
    found = scores(q, digests[rows]) * scale
    seen = selected(found, pins[rows], counts[rows], live, page)
    recall(seen, priority(found, pins[rows], counts[rows], live, page), hosts, residents, rows, live, page)
    if k is not None and v is not None:
        plain.write(hosts, (k, v), slot, entry, live)
        _write(residents, (k, v), rows, entry, live, page)
        open_page = place_of[rows].gather(2, (entry.long() // page).view(-1, 1, 1).expand(-1, q.shape[1], 1))
        complete(_in_places(keys, rows, open_page, page), digests, counts, rows, entry, live)
    visible = in_pages(seen, live, page)
    own_keys, own_values = (
        _in_places(plane, rows, place_of[rows], page).where(visible[..., None], 0) for plane in (keys, values)
    )
    return plain.attend(q, own_keys, own_values, visible[:, :, None], scale)


def recall(
    seen: Tensor,
    share: Tensor,
    hosts: tuple[Tensor, Tensor],
    residents: Residents,
    rows: Tensor,
    live: Tensor,
    page: int,
    is_prefetch: bool = False,
) -> None:
    """Copy the pages that rows read, bool [B, H, P], to places on the device if they have none; in place.

    share: float32 [B, H, P]. The first of these pages takes the first place that is freed. is_prefetch: by
    predicted queries.
    """
    place_of, page_in = residents.place_of[rows].long(), residents.page_in[rows].long()
    index, last = torch.arange(seen.shape[2], device=seen.device), seen.shape[2] - 1
    is_empty, held = page_in < 0, page_in.clamp(0, last)
    wanted = seen & (place_of < 0)
    is_read = seen.gather(2, held) & ~is_empty
    stays = is_read.int() - is_empty.int()
    is_freed = _rank(held, share.gather(2, held), stays) < wanted.sum(-1, keepdim=True)
    freed = (~is_freed).int().argsort(dim=-1, stable=True)
    target = freed.gather(2, (wanted.cumsum(-1) - 1).clamp(0, freed.shape[2] - 1))
    place_of = _scattered(place_of, held, torch.full_like(held, -1), is_freed & ~is_empty)
    page_in = _scattered(page_in, target, index.expand_as(target), wanted)
    residents.place_of[rows] = torch.where(wanted, target, place_of).int()
    residents.page_in[rows] = page_in.int()
    has_entries = page_in * page + 1 < live[:, None, None]
    is_moved = is_freed & has_entries
    _count(residents, rows, is_moved, is_read, is_prefetch)
    for plane, host in zip((residents.keys, residents.values), hosts, strict=True):
        before, new = plane[rows], _in_places(host, rows, page_in, page)
        is_new = is_moved.repeat_interleave(page, -1)
        plane[rows] = torch.where(is_new[..., None], new, before)


def _count(residents: Residents, rows: Tensor, is_moved: Tensor, is_read: Tensor, is_prefetch: bool) -> None:
    """Count in `fetched` the places, bool [B, H, R], that pages were moved to, and prefetched ones that are read."""
    fetched, hits = residents.fetched, (residents.prefetched[rows] > 0) & is_read
    fetched[rows, :, int(is_prefetch)] += is_moved.sum(-1).int()
    if not is_prefetch:
        fetched[rows, :, 2] += hits.sum(-1).int()
    residents.prefetched[rows] = (is_moved if is_prefetch else torch.zeros_like(is_moved)).int()


def _rank(*keys: Tensor) -> Tensor:
    """Return the places of elements in the order of the last key, of equal ones in that of the one before it."""
    order = torch.arange(keys[0].shape[-1], device=keys[0].device).expand_as(keys[0])
    for key in keys:
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def _scattered(old: Tensor, index: Tensor, new: Tensor, mask: Tensor) -> Tensor:
    """Return `old` with the new values at these indices of its last dimension, if `mask`."""
    padded = torch.cat((old, torch.empty_like(old[..., :1])), -1)
    return padded.scatter_(-1, torch.where(mask, index, old.shape[-1]), new)[..., :-1]


def _in_places(plane: Tensor, rows: Tensor, places: Tensor, page: int) -> Tensor:
    """Return the entries [B, H, n * page, D] of pages in places [B, H, n] of a plane [S, H, R * page, D]."""
    pages, heads = plane.unflatten(2, (-1, page)), torch.arange(plane.shape[1], device=plane.device)[:, None]
    found: Tensor = pages[rows[:, None, None], heads, places.long().clamp(0, pages.shape[2] - 1)]
    return found.flatten(2, 3)


def _write(
    residents: Residents, new: tuple[Tensor, Tensor], rows: Tensor, entry: Tensor, live: Tensor, page: int
) -> None:
    """Write k, v [B, H, D] to the places of their pages."""
    heads = torch.arange(new[0].shape[1], device=entry.device)
    place = residents.place_of[rows[:, None], heads, (entry.long() // page)[:, None]].long()
    place = place.clamp(0, residents.page_in.shape[2] - 1)  # of a free row, which writes nothing
    at = rows[:, None], heads, place * page + (entry % page)[:, None]
    for plane, fresh in zip((residents.keys, residents.values), new, strict=True):
        plane[at] = torch.where((live > 0)[:, None, None], fresh, plane[at])


def prefetch_recall(q: Tensor, *others: Tensor | float) -> Tensor:
    """Recall the pages that `decode_attend_recall` will probably read in this step: for predicted q [B, H, G, D].

    others: the arguments of `decode_attend_recall` from host_keys on, except entry. Returns int32 [B, H], how many
    pages of each head had no place.
    """
    moves: Tensor = torch.ops.ringkv.prefetch_recall(q, *others)
    return moves


def prefetch_reference(
    q: Tensor,
    host_keys: Tensor,
    host_values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    keys: Tensor,
    values: Tensor,
    place_of: Tensor,
    page_in: Tensor,
    prefetched: Tensor,
    fetched: Tensor,
    slot: Tensor,
    live: Tensor,
    scale: float,
) -> Tensor:
    """Implement `prefetch_recall` in plain torch."""
    rows, page = slot.long(), host_keys.shape[2] // digests.shape[2]
    found = scores(q, digests[rows]) * scale
    seen = selected(found, pins[rows], counts[rows], live, page)
    moves = (seen & (place_of[rows] < 0)).sum(-1).int()
    residents = Residents(keys, values, place_of, page_in, prefetched, fetched)
    share = priority(found, pins[rows], counts[rows], live, page)
    recall(seen, share, (host_keys, host_values), residents, rows, live, page, is_prefetch=True)
    return moves


plain.register("decode_attend_recall", reference)
LIBRARY.impl("prefetch_recall", prefetch_reference, "CompositeExplicitAutograd")
plain.register_cuda("prefetch_recall", "recall_attend")
plain.register_cuda("decode_attend_recall", "recall_attend")
