"""The reference of decode attention: plain torch, over all entries with a mask, so that no length waits for the host.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot, D elements of a
vector. Ragged heads share planes of E entries; there C is E.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import IN_CHUNKS
from ringkv.kernels import pages, recall
from ringkv.kernels.constants import BUFFERED, FIRST
from ringkv.kernels.encoding import ENCODINGS, LATENT_ENCODINGS, Encoding, split_centers, with_first
from ringkv.kernels.slots import Pages, Ragged, Rows, Slots
from ringkv.kernels.zip_slots import ZipSlots
from ringkv.kernels.zip_tokens import append, decoded


def decode_attend(
    q: Tensor, k: Tensor | None, v: Tensor | None, slots: Slots, rows: Rows, scale: float
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.decode_attend.decode_attend`."""
    if slots.encoding == IN_CHUNKS:
        assert k is not None
        assert v is not None
        return _decode_chunks(q, k, v, slots, rows, scale)
    parts = len(ENCODINGS[slots.encoding].parts)
    if len(slots.planes) == parts:
        return _attend_latents(q, k, slots, rows, scale)
    stored = _Stored(ENCODINGS[slots.encoding], slots.planes[:parts], slots.planes[parts:], slots.centers)
    if isinstance(slots.reading, Pages):
        return _attend_pages(q, k, v, stored, slots.reading, rows, scale)
    if isinstance(slots.reading, Ragged):
        return _attend_ragged(q, k, v, stored, slots.reading, rows, scale)
    if k is not None and v is not None:
        stored.write(k, v, rows)
    visible = torch.arange(stored.entries, device=q.device) < rows.live[:, None]
    return attend(q, *stored.decoded(rows.slot.long()), visible[:, None, None], scale)


def attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention of q [B, H, Q, D] to the `visible` bool [B, 1 or H, 1, C] of keys and values [B, H, C, D]."""
    scores = torch.matmul(q.float() * scale, keys.float().transpose(-1, -2))
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = scores.softmax(-1).masked_fill((lse == float("-inf"))[..., None], 0.0)
    return torch.matmul(weights, values.float()).to(q.dtype), lse


class _Stored(NamedTuple):
    """The planes of keys and of values [S, H, C, ...] in an encoding."""

    encoding: Encoding
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    centers: Tensor | None

    @property
    def entries(self) -> int:
        return self.keys[0].shape[2]

    def encoded(self, k: Tensor, v: Tensor, slot: Tensor) -> tuple[Tensor, ...]:
        """Return what planes store of new keys and values [B, H, D]."""
        if self.centers is not None:
            k = k - self.centers[slot.long(), :, : k.shape[-1]]
        return *self.encoding.encode(k), *self.encoding.encode(v)

    def write(self, k: Tensor, v: Tensor, rows: Rows) -> None:
        """Write new keys and values [B, H, D] to their entries."""
        write((*self.keys, *self.values), self.encoded(k, v, rows.slot), *rows)

    def decoded(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, C, D] of slots int64 [B]."""
        keys, values = (self.encoding.decode(*(part[slots] for part in plane)) for plane in (self.keys, self.values))
        if self.centers is None:
            return keys, values
        center, first = split_centers(self.centers[slots], keys.shape[-1])
        return with_first(keys, first) + center[:, :, None], values


def write(planes: Sequence[Tensor], new: Sequence[Tensor], slot: Tensor, entry: Tensor, live: Tensor) -> None:
    """Write new [B, H, ...] at `entry` of each row's slot, in planes [S, H, C, ...]. Rows with live <= 0 write nothing.

    Those rows store what is there already, so that the host need not wait for `live`.
    """
    index = slot.long(), slice(None), entry.long()
    for plane, fresh in zip(planes, new, strict=True):
        used = (live > 0).view(-1, *[1] * (fresh.dim() - 1))
        plane[index] = torch.where(used, fresh, plane[index])


def _attend_pages(
    q: Tensor, k: Tensor | None, v: Tensor | None, stored: _Stored, reading: Pages, rows: Rows, scale: float
) -> tuple[Tensor, Tensor]:
    slot, page = rows.slot.long(), stored.entries // reading.digests.shape[2]
    if reading.residents is not None:
        recall.recall(q, reading, (stored.keys[0], stored.values[0]), rows, page, scale)
    if k is not None and v is not None:
        stored.write(k, v, rows)
        # Digests are of keys as they are decoded, minus their center: it adds the same to the scores of all pages.
        # Those of rotated keys, which differ as much in each element, would be looser.
        written = (pages.written(part, slot, rows.entry, page) for part in stored.keys)
        pages.complete(stored.encoding.decode(*written), reading, rows)
        if reading.residents is not None:
            recall.write(reading.residents, (k, v), rows, page)
    seen = pages.selected(pages.scores(q, reading.digests[slot]) * scale, reading, rows, page)
    visible = pages.in_pages(seen, rows.live, page)
    if reading.residents is not None:
        return attend(q, *recall.recalled(reading.residents, slot, visible, page), visible[:, :, None], scale)
    return attend(q, *stored.decoded(slot), visible[:, :, None], scale)


def _attend_ragged(
    q: Tensor, k: Tensor | None, v: Tensor | None, stored: _Stored, reading: Ragged, rows: Rows, scale: float
) -> tuple[Tensor, Tensor]:
    slot, live = rows.slot.long(), rows.live
    first, more = reading.places[slot].long().unbind(-1)
    if k is not None and v is not None:
        index, used = first + more + rows.entry[:, None].long(), live > 0
        for plane, new in zip((*stored.keys, *stored.values), stored.encoded(k, v, rows.slot), strict=True):
            entry = slot[:, None], 0, index
            plane[entry] = torch.where(used.view(-1, *[1] * (new.dim() - 1)), new, plane[entry])
    keys, values = stored._replace(centers=None).decoded(slot)
    lengths = torch.where((live > 0)[:, None], live[:, None] + more, 0)
    place = torch.arange(stored.entries, device=q.device) - first[..., None]  # [B, H, C]
    if stored.centers is not None:
        keys = _with_centers(keys, stored.centers[slot], place)
    visible = (place >= 0) & (place < lengths[..., None])
    return attend(q, keys, values, visible[:, :, None], scale)


def _with_centers(keys: Tensor, centers: Tensor, place: Tensor) -> Tensor:
    """Return keys [B, H, C, D] of shared ones [B, 1, C, D], each head with its centers [B, H, (1 + E) D].

    place: int64 [B, H, C], where an entry is among a head's.
    """
    width = keys.shape[-1]
    center, first = split_centers(centers, width)
    exact = first.unflatten(-1, (-1, width))  # [B, H, E, D]
    index = place.clamp(0, exact.shape[2] - 1)[..., None].expand(*place.shape, width)
    exact = exact.gather(2, index)
    is_first = (place >= 0) & (place < first.shape[-1] // width)
    return torch.where(is_first[..., None] & ~exact.isnan(), exact, keys) + center[:, :, None]


def _attend_latents(q: Tensor, k: Tensor | None, slots: Slots, rows: Rows, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to latents, which are keys and values.

    Encoded ones are decoded slot by slot, only live ones, to the dtype of q. The operator attends to them as plain keys
    and values, so that its kernel is used if there is one.
    """
    assert k is not None
    encoding = LATENT_ENCODINGS[slots.encoding]
    if slots.centers is None:
        write(slots.planes, encoding.encode(k), *rows)
        (latents,) = slots.planes
        visible = torch.arange(latents.shape[2], device=q.device) < rows.live[:, None]
        return attend(q, latents[rows.slot.long()], latents[rows.slot.long()], visible[:, None, None], scale)
    center, first = split_centers(slots.centers, k.shape[-1])
    write(slots.planes, encoding.encode(k - center[rows.slot.long()]), *rows)
    results = []
    for row, (slot, live) in enumerate(zip(rows.slot.tolist(), rows.live.tolist(), strict=True)):
        place = slice(slot, slot + 1), slice(None), slice(max(1, live))
        decoded = encoding.decode(*(part[place] for part in slots.planes))
        latents = (with_first(decoded, first[slot : slot + 1]) + center[slot, :, None]).to(q.dtype)
        only = [torch.zeros_like(number[row : row + 1]) for number in (rows.slot, rows.entry)]
        plain = [latents, latents], None, None, 0, 0, *only, rows.live[row : row + 1], "plain"
        results.append(torch.ops.ringkv.decode_attend(q[row : row + 1], None, None, *plain, scale))
    out, lse = zip(*results, strict=True)
    return torch.cat(out), torch.cat(lse)


def _decode_chunks(q: Tensor, k: Tensor, v: Tensor, slots: Slots, rows: Rows, scale: float) -> tuple[Tensor, Tensor]:
    """Add k, v [B, H, D] to each row's slot and attend to all of the slot's tokens, one row after the other.

    live: tokens that the layout calls live, with the new one; the slot may have up to two chunks more. The entry is not
    used.
    """
    chunks = ZipSlots(*slots.planes)
    out, lse = torch.zeros_like(q, memory_format=torch.contiguous_format), q.new_full(q.shape[:3], -torch.inf).float()
    for row, (slot, live) in enumerate(zip(rows.slot.tolist(), rows.live.tolist(), strict=True)):
        if live:
            stored = chunks.of(slot)
            append(stored, k[row], v[row], live)
            out[row], lse[row] = _attend_chunks(q[row], stored, scale)
    return out, lse


def _attend_chunks(q: Tensor, slot: ZipSlots, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention of q [H, G, D] to a slot, and add what the keys in its buffer get to `attention`."""
    keys, values = decoded(slot)
    visible = torch.ones(1, 1, 1, keys.shape[1], dtype=torch.bool, device=q.device)
    out, lse = (result[0] for result in attend(q[None], keys[None], values[None], visible, scale))
    count = slot.held()
    buffer = keys[:, count[FIRST] : count[FIRST] + count[BUFFERED]]
    weights = (torch.matmul(q.float() * scale, buffer.transpose(-1, -2)) - lse[..., None]).exp()
    slot.attention[:, : count[BUFFERED]] += weights.mean(1)
    return out, lse
