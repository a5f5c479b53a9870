"""Pages of a slot: their digests, and which of them a step reads: those whose digests promise the most attention.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot in P pages, D
head_dim. Source: ArkVale (NeurIPS 2024), section 3.
"""

import torch
from torch import Tensor

from ringkv.kernels.slots import Pages, Rows


def digest(pages: Tensor) -> Tensor:
    """Return the digests [..., 2, D] of pages of keys [..., page, D].

    They are the middle of each element's extremes, plus and minus the mean distance from it (ArkVale, section 3.2).
    """
    wide = pages.float()
    high, low = wide.amax(-2), wide.amin(-2)
    middle, total = (high + low) * 0.5, torch.zeros_like(high)
    for key in wide.unbind(-2):  # in the order of the C++ operator, for the same bits
        total += (middle - key).abs()
    radius = total / pages.shape[-2]
    return torch.stack((middle + radius, middle - radius), -2).to(pages.dtype)


def scores(q: Tensor, digests: Tensor) -> Tensor:
    """Return float32 [B, H, G, P] of q [B, H, G, D] and digests [B, H, P, 2, D]: what q . k may be."""
    upper, lower = digests.float().transpose(-1, -3).unbind(-2)  # [B, H, D, P]
    return q.float().clamp(min=0) @ upper + q.float().clamp(max=0) @ lower


def shares(scores: Tensor, seen: Tensor) -> Tensor:
    """Return float32 [B, H, P]: the logarithm of the share of attention that scores [B, H, G, P] promise to a page.

    The query head that promises a page the most counts: the sum over heads (ArkVale) lets many heads that look
    everywhere hide a head that looks at few pages. Shares are of `seen` pages, bool [B, 1, P]. NaN promises nothing.
    """
    finite = scores.nan_to_num(nan=float("-inf"), posinf=torch.finfo(torch.float32).max)
    every = finite.masked_fill(~seen[:, :, None], float("-inf"))
    return (every - every.logsumexp(-1, keepdim=True)).nan_to_num(nan=float("-inf")).amax(2)


def selected(scores: Tensor, reading: Pages, rows: Rows, page: int) -> Tensor:
    """Return bool [B, H, P]: the pages that rows read.

    scores [B, H, G, P]. Pinned pages come before those with the highest `priority`, of equal ones the first.
    """
    counts = reading.counts[rows.slot.long()]
    limit, leading, newest = (column[:, None, None] for column in counts.unbind(-1))
    total = ((rows.live + page - 1) // page)[:, None, None]
    index = torch.arange(scores.shape[-1], device=scores.device)
    always = (index < leading) | (index >= total - newest)
    others = priority(scores, reading, rows, page).masked_fill(always, float("-inf"))
    order = others.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, index.expand_as(order))
    return ((total <= limit) | always | (rank < limit - leading - newest)) & (index < total)


def priority(scores: Tensor, reading: Pages, rows: Rows, page: int) -> Tensor:
    """Return float32 [B, H, P]: by what `selected` selects pages before the newest; infinite for pinned ones."""
    slot = rows.slot.long()
    older = (rows.live + page - 1) // page - reading.counts[slot, 2]
    is_older = torch.arange(scores.shape[-1], device=scores.device) < older[:, None, None]
    return torch.maximum(shares(scores, is_older), reading.pins[slot])


def in_pages(seen: Tensor, live: Tensor, page: int) -> Tensor:
    """Return bool [B, H, C]: the live entries of seen pages, bool [B, H, P]."""
    entries = seen.repeat_interleave(page, -1)
    return entries & (torch.arange(entries.shape[-1], device=live.device) < live[:, None])[:, None]


def written(plane: Tensor, rows: Tensor, entry: Tensor, page: int) -> Tensor:
    """Return the pages [B, H, page, ...] of a plane [S, H, C, ...] in which rows write their entries."""
    places = entry.long()[:, None] // page * page + torch.arange(page, device=plane.device)
    return plane[rows[:, None], :, places].transpose(1, 2)


def complete(keys: Tensor, reading: Pages, rows: Rows) -> None:
    """Write the digest of each row's page of keys [B, H, page, D] if its last entry was written."""
    page, slot = keys.shape[2], rows.slot.long()
    new = digest(keys).to(reading.digests.dtype)
    is_last = (((rows.entry + 1) % page == 0) & (rows.live > 0))[:, None, None, None]
    place = slot, slice(None), rows.entry.long() // page
    reading.digests[place] = torch.where(is_last, new, reading.digests[place])
