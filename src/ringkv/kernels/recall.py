"""Recall: pages of slots in the host's memory, copied to the device when a step reads them.

Each new token is written to both places.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot in P pages, R places
for pages on the device, D head_dim. Source: ArkVale (NeurIPS 2024), section 3.
"""

import torch
from torch import Tensor

from ringkv.kernels import pages
from ringkv.kernels.slots import Pages, Residents, Rows


def recall(q: Tensor, reading: Pages, hosts: tuple[Tensor, Tensor], rows: Rows, page: int, scale: float) -> None:
    """Copy the pages that rows read for q [B, H, G, D] to places on the device if they have none; in place.

    hosts: keys and values [S, H, C, D] in memory that the device can address. No row may read more than R pages. A page
    that is recalled takes an empty place, else that of the page with the lowest `priority`, of equal ones the first, of
    those that the row does not read.
    """
    assert reading.residents is not None
    scores = pages.scores(q, reading.digests[rows.slot.long()]) * scale
    seen = pages.selected(scores, reading, rows, page)
    share = pages.priority(scores, reading, rows, page)
    _take_places(seen, share, hosts, reading.residents, rows, page)


def _take_places(
    seen: Tensor, share: Tensor, hosts: tuple[Tensor, Tensor], residents: Residents, rows: Rows, page: int
) -> None:
    """Copy the seen pages, bool [B, H, P]; share: float32 [B, H, P]. The first of them takes the first freed place."""
    slot = rows.slot.long()
    place_of, page_in = residents.place_of[slot].long(), residents.page_in[slot].long()
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
    residents.place_of[slot] = torch.where(wanted, target, place_of).int()
    residents.page_in[slot] = page_in.int()
    has_entries = page_in * page + 1 < rows.live[:, None, None]
    is_moved = is_freed & has_entries
    residents.fetched[slot] += is_moved.sum(-1).int()
    for plane, host in zip((residents.keys, residents.values), hosts, strict=True):
        before, new = plane[slot], _in_places(host, slot, page_in, page)
        is_new = is_moved.repeat_interleave(page, -1)
        plane[slot] = torch.where(is_new[..., None], new, before)


def recalled(residents: Residents, slots: Tensor, visible: Tensor, page: int) -> tuple[Tensor, Tensor]:
    """Return keys and values [B, H, C, D] of slots int64 [B]: the visible entries, bool [B, H, C], from the device."""
    places = residents.place_of[slots]
    keys, values = (
        _in_places(plane, slots, places, page).where(visible[..., None], 0)
        for plane in (residents.keys, residents.values)
    )
    return keys, values


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
    entries: Tensor = pages[rows[:, None, None], heads, places.long().clamp(0, pages.shape[2] - 1)]
    return entries.flatten(2, 3)


def write(residents: Residents, new: tuple[Tensor, Tensor], rows: Rows, page: int) -> None:
    """Write k, v [B, H, D] to the places of their pages."""
    heads, entry = torch.arange(new[0].shape[1], device=rows.entry.device), rows.entry.long()
    slot = rows.slot.long()[:, None]
    place = residents.place_of[slot, heads, (entry // page)[:, None]].long()
    place = place.clamp(0, residents.page_in.shape[2] - 1)  # of a free row, which writes nothing
    index = slot, heads, place * page + (entry % page)[:, None]
    for plane, fresh in zip((residents.keys, residents.values), new, strict=True):
        plane[index] = torch.where((rows.live > 0)[:, None, None], fresh, plane[index])
