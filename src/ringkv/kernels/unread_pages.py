"""Attention to the pages of a slot that a step does not read, estimated from their digests.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, P pages of a slot, D head_dim. Source:
the estimation zone of RetroInfer (arXiv 2505.02922), for pages instead of clusters, with one mean value for all pages.
"""

import math

import torch
from torch import Tensor

from ringkv.base.cache_spec import MEANS
from ringkv.kernels.partial import Partial, merge


def add_unread_pages(
    read: Partial,
    q: Tensor,
    v: Tensor | None,
    means: Tensor,
    centers: Tensor | None,
    digests: Tensor,
    seen: Tensor,
    slot: Tensor,
    live: Tensor,
    page: int,
    scale: float,
) -> Partial:
    """Add to what was read for q [B, H, G, D] an estimate of the pages that were not.

    All keys of a page count as the middle of its digest, and all values as the mean of their slot. So the softmax has
    about the denominator that it has over all entries. Without unread pages the others get too much weight.

    means: float32 [S, H, MEANS, D], the mean of the first n values of a slot at n modulo MEANS; that with v [B, H, D],
    the newest of `live` values, is written. Older means stay, so that drafts can be taken back. centers: float32
    [S, H, at least D] whose first D elements digests lack, as those of `EncodedPlanes`; None if digests are of whole
    keys. seen: bool [B, H, P], the pages that were read. page: its entries.

    If all pages were read, `read` is returned bit for bit.
    """
    rows, count = slot.long(), live.long()
    if v is not None:
        older, before = means[rows, :, (count - 1) % MEANS], means[rows, :, count % MEANS]
        newest = older + (v.float() - older) / count.clamp(min=1)[:, None, None]
        means[rows, :, count % MEANS] = torch.where((count > 0)[:, None, None], newest, before)
    own = digests[rows]
    held = torch.arange(own.shape[2], device=q.device) < ((live + page - 1) // page)[:, None, None]
    found = q.float() @ own.float().mean(-2).transpose(-1, -2) * scale + math.log(page)
    is_counted = (held & ~seen)[:, :, None] & found.isfinite()
    unread = found.masked_fill(~is_counted, float("-inf")).logsumexp(-1)
    value = means[rows, :, count % MEANS][:, :, None].expand_as(q)
    is_estimated = unread > float("-inf")  # else a stale mean must not matter, not even if it is NaN
    if centers is not None:
        of_centers = (q.float() @ centers[rows, :, : q.shape[-1], None])[..., 0] * scale
        unread = unread + of_centers.where(is_estimated, 0)
    return merge(read, Partial(value.where(is_estimated[..., None], 0), unread))
