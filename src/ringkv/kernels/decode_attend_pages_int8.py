"""Decode attention that reads some pages of a slot whose entries are int8.

Digests are of keys as they are decoded, not rotated, minus their center: it adds the same to the scores of all pages,
and the operator adds that. Rotated keys differ as much in each element, so their bounds would be looser.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot in P pages, D
head_dim.
"""

from torch import Tensor

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.decode_attend_int8 import INT8
from ringkv.kernels.decode_attend_pages import complete, in_pages, scores, selected, written
from ringkv.kernels.encoded_attend import EncodedPlanes, decoded, write
from ringkv.kernels.partial import Partial
from ringkv.kernels.unread_pages import add_unread_pages


def decode_attend_pages_int8(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *others: Tensor | float | None,
) -> Partial:
    """Do what `decode_attend_int8` does, with at most so many pages of each head.

    others: the tensors of `EncodedPlanes`; digests, pins and counts of `decode_attend_pages`; slot, entry, live int32
    [B]; scale; means of `decode_attend_pages`. If a slot has no more pages than it may read, results have the bits of
    `decode_attend_int8`.
    """
    return Partial(*plain.operator("decode_attend_pages_int8", q)(q, k, v, *others))


def reference(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    key_scales: Tensor,
    values: Tensor,
    value_scales: Tensor,
    centers: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    means: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Implement `decode_attend_pages_int8` in plain torch, over all entries with a mask."""
    rows, page = slot.long(), keys.shape[2] // digests.shape[2]
    planes = EncodedPlanes(keys, key_scales, values, value_scales, centers)
    if k is not None and v is not None:
        write((INT8, INT8), k, v, planes, slot, entry, live)
        pages = INT8.decode(*(written(plane, rows, entry, page) for plane in (keys, key_scales)))
        complete(pages, digests, counts, rows, entry, live)
    seen = selected(scores(q, digests[rows]) * scale, pins[rows], counts[rows], live, page)
    visible = in_pages(seen, live, page)[:, :, None]
    read = Partial(*plain.attend(q, *decoded((INT8, INT8), planes, rows), visible, scale))
    if means is None:
        return read
    return add_unread_pages(read, q, v, means, centers, digests, seen, slot, live, page, scale)


plain.register("decode_attend_pages_int8", reference)
