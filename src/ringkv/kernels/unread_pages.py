"""Attention to the pages of a slot that a step does not read, estimated from their digests.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, P pages of a slot, D head_dim. Source:
the estimation zone of RetroInfer (arXiv 2505.02922), for pages instead of clusters, with one mean value for all pages.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import MEANS
from ringkv.kernels.partial import Partial, merge
from ringkv.kernels.slots import Pages, Rows


class SeenPages(NamedTuple):
    """mask: bool [B, H, P], the pages that were read. size: entries of a page."""

    mask: Tensor
    size: int


def add_unread_pages(
    read: Partial,
    q: Tensor,
    v: Tensor | None,
    reading: Pages,
    centers: Tensor | None,
    rows: Rows,
    seen: SeenPages,
    scale: float,
) -> Partial:
    """Add to what was read for q [B, H, G, D] an estimate of the pages that were not.

    All keys of a page count as the middle of its digest, and all values as the mean of their slot. So the softmax has
    about the denominator that it has over all entries. Without unread pages the others get too much weight.

    reading: its means have the mean of the first n values of a slot at n modulo MEANS; that with v [B, H, D], the
    newest of `live` values, is written. Older means stay, so that drafts can be taken back. centers: float32
    [S, H, at least D] whose first D elements digests lack, as those of `Slots`; None if digests are of whole keys.

    If all pages were read, `read` is returned bit for bit.
    """
    means, page, slot, count = reading.means, seen.size, rows.slot.long(), rows.live.long()
    assert means is not None
    if v is not None:
        older, before = means[slot, :, (count - 1) % MEANS], means[slot, :, count % MEANS]
        newest = older + (v.float() - older) / count.clamp(min=1)[:, None, None]
        means[slot, :, count % MEANS] = torch.where((count > 0)[:, None, None], newest, before)
    digests = reading.digests[slot]
    is_live = torch.arange(digests.shape[2], device=q.device) < ((rows.live + page - 1) // page)[:, None, None]
    scores = q.float() @ digests.float().mean(-2).transpose(-1, -2) * scale + math.log(page)
    is_counted = (is_live & ~seen.mask)[:, :, None] & scores.isfinite()
    unread = scores.masked_fill(~is_counted, float("-inf")).logsumexp(-1)
    value = means[slot, :, count % MEANS][:, :, None].expand_as(q)
    is_estimated = unread > float("-inf")  # else a stale mean must not matter, not even if it is NaN
    if centers is not None:
        of_centers = (q.float() @ centers[slot, :, : q.shape[-1], None])[..., 0] * scale
        unread = unread + of_centers.where(is_estimated, 0)
    return merge(read, Partial(value.where(is_estimated[..., None], 0), unread))
