"""Decode attention that reads some pages of a slot: those whose digests promise the most attention.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot in P pages, D
head_dim. Source: ArkVale (NeurIPS 2024), section 3; with bounds, Quest (arXiv 2406.10774), algorithm 1.
"""

import torch
from torch import Tensor

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.partial import Partial
from ringkv.kernels.unread_pages import add_unread_pages

EVERY_PAGE = 2**31 - 1


def decode_attend_pages(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    means: Tensor | None = None,
) -> Partial:
    """Do what `decode_attend` does, with at most so many pages of each head.

    digests [S, H, P, 2, D]: an upper and a lower bound of each page's keys, written with the last entry of a page.
    counts int32 [S, 5]: pages that a step reads; how many of them are the first; how many the newest, the open one
    among them; whether digests are means instead of bounds; and whether all heads read the same pages. Of the others
    pinned pages come before those with the highest `priority`; of equal ones the first. pins float32 [S, H, P]:
    infinite for pinned pages, else -inf; equal in all heads that read the same pages. If a slot has no more pages than
    it may read, results have the bits of `decode_attend`.

    means float32 [S, H, MEANS, D]: other pages are estimated, see `add_unread_pages`. None: they count nothing.
    """
    return Partial(
        *plain.operator("decode_attend_pages", q)(
            q, k, v, keys, values, digests, pins, counts, slot, entry, live, scale, means
        )
    )


def digest(pages: Tensor, is_mean: Tensor | bool) -> Tensor:
    """Return the digests [..., 2, D] of pages of keys [..., page, D].

    Bounds are the extremes of each element. Means are the middle of the extremes, plus and minus the mean distance from
    it: no bounds, but they select better pages (ArkVale, section 3.2).
    """
    wide = pages.float()
    high, low = wide.amax(-2), wide.amin(-2)
    middle, total = (high + low) * 0.5, torch.zeros_like(high)
    for one in wide.unbind(-2):  # in the order of the C++ operator, for the same bits
        total += (middle - one).abs()
    radius = total / pages.shape[-2]
    mean = torch.stack((middle + radius, middle - radius), -2)
    means = torch.as_tensor(is_mean, device=pages.device)
    return torch.where(means, mean, torch.stack((high, low), -2)).to(pages.dtype)


def scores(q: Tensor, digests: Tensor) -> Tensor:
    """Return float32 [B, H, G, P] of q [B, H, G, D] and digests [B, H, P, 2, D]: what q . k is at most."""
    upper, lower = digests.float().transpose(-1, -3).unbind(-2)  # [B, H, D, P]
    return q.float().clamp(min=0) @ upper + q.float().clamp(max=0) @ lower


def shares(scores: Tensor, seen: Tensor) -> Tensor:
    """Return float32 [B, H, P]: the logarithm of the share of attention that scores [B, H, G, P] promise to a page.

    The query head that promises a page the most counts: the sum over heads (ArkVale) lets many heads that look
    everywhere hide the one that has found something. Shares are of `seen` pages, bool [B, H, P]. NaN promises nothing.
    """
    finite = scores.nan_to_num(nan=float("-inf"), posinf=torch.finfo(torch.float32).max)
    every = finite.masked_fill(~seen[:, :, None], float("-inf"))
    return (every - every.logsumexp(-1, keepdim=True)).nan_to_num(nan=float("-inf")).amax(2)


def reference(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    means: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Implement `decode_attend_pages` in plain torch, over all entries with a mask."""
    rows, page = slot.long(), keys.shape[2] // digests.shape[2]
    if k is not None and v is not None:
        plain.write((keys, values), (k, v), slot, entry, live)
        complete(written(keys, rows, entry, page), digests, counts, rows, entry, live)
    seen = selected(scores(q, digests[rows]) * scale, pins[rows], counts[rows], live, page)
    read = Partial(*plain.attend(q, keys[rows], values[rows], in_pages(seen, live, page)[:, :, None], scale))
    if means is None:
        return read
    return add_unread_pages(read, q, v, means, None, digests, seen, slot, live, page, scale)


def selected(scores: Tensor, pins: Tensor, counts: Tensor, live: Tensor, page: int) -> Tensor:
    """Return bool [B, H, P]: the pages that rows read.

    scores [B, H, G, P]; pins float32 [B, H, P]; counts int32 [B, 5]; live int32 [B].
    """
    most, leading, newest, *_ = (column[:, None, None] for column in counts.unbind(-1))
    total = ((live + page - 1) // page)[:, None, None]
    index = torch.arange(scores.shape[-1], device=scores.device)
    always = (index < leading) | (index >= total - newest)
    others = priority(scores, pins, counts, live, page).masked_fill(always, float("-inf"))
    order = others.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, index.expand_as(order))
    return ((total <= most) | always | (rank < most - leading - newest)) & (index < total)


def priority(scores: Tensor, pins: Tensor, counts: Tensor, live: Tensor, page: int) -> Tensor:
    """Return float32 [B, H, P]: by what `selected` selects pages before the newest; infinite for pinned ones.

    If all heads of a row read the same pages, the head that gives a page the highest priority counts.
    """
    older = (live + page - 1) // page - counts[:, 2]
    is_older = (torch.arange(scores.shape[-1], device=scores.device) < older[:, None, None]).expand(*pins.shape)
    own = torch.maximum(shares(scores, is_older), pins)
    return torch.where(counts[:, 4, None, None] > 0, own.amax(1, keepdim=True), own)


def in_pages(seen: Tensor, live: Tensor, page: int) -> Tensor:
    """Return bool [B, H, C]: the live entries of seen pages, bool [B, H, P]."""
    entries = seen.repeat_interleave(page, -1)
    return entries & (torch.arange(entries.shape[-1], device=live.device) < live[:, None])[:, None]


def written(plane: Tensor, rows: Tensor, entry: Tensor, page: int) -> Tensor:
    """Return the pages [B, H, page, ...] of a plane [S, H, C, ...] in which rows write their entries."""
    places = entry.long()[:, None] // page * page + torch.arange(page, device=plane.device)
    return plane[rows[:, None], :, places].transpose(1, 2)


def complete(pages: Tensor, digests: Tensor, counts: Tensor, rows: Tensor, entry: Tensor, live: Tensor) -> None:
    """Write the digest of each row's page of keys [B, H, page, D] if its last entry was written."""
    page = pages.shape[2]
    new = digest(pages, (counts[rows, 3] > 0)[:, None, None, None]).to(digests.dtype)
    is_last = (((entry + 1) % page == 0) & (live > 0))[:, None, None, None]
    at = rows, slice(None), entry.long() // page
    digests[at] = torch.where(is_last, new, digests[at])


plain.register("decode_attend_pages", reference)
plain.register_cuda("decode_attend_pages", "pages_attend")
