"""allocate: the memory of slots, from the encoding and the reading of a group of layers."""

import torch
from torch import Tensor

from ringkv.base.cache_spec import HISTORY, IN_CHUNKS, PLAIN_SLOTS, LayerGroup, Pages, Ragged
from ringkv.cache import page_index
from ringkv.cache.body import Body, plain_body
from ringkv.cache.filling import encoding_of
from ringkv.cache.watching.ledger import Ledger
from ringkv.cache.zip_body import ZipBody
from ringkv.kernels import slots
from ringkv.kernels.encoding import NO_KEY
from ringkv.kernels.read_ahead import read_ahead
from ringkv.kernels.slots import Allocate


def allocate_slots(group: LayerGroup, rows: int, entries: int, new: Allocate, tier: Allocate | None = None) -> Body:
    """Return the memory of slots of so many entries. The planes of the group's spec are encoded.

    new: makes a tensor from a shape and an optional dtype; it decides the device, the initial contents and the plain
    dtype. tier: makes the planes of pages that are on disk, or in the host's memory beside a GPU.
    """
    if group.spec.key.format == IN_CHUNKS:
        return ZipBody.allocate(group, rows, entries, new)
    planes, pages = _planes(group, rows, entries, tier or new), group.slots.pages
    stored = slots.Slots(
        encoding=group.spec.key.format,
        planes=planes,
        centers=_centers(group, rows, new),
        reading=_reading(group, rows, entries, new),
        queries=_queries(group, rows, new),
    )
    noted = _ledger(group, rows, entries, new) if group.slots.queries else None
    return Body(group, stored, noted, read_ahead(planes) if pages and pages.on_disk else None)


def allocate_plain(group: LayerGroup, rows: int, entries: int, new: Allocate) -> Body:
    """Return rows of plain entries, such as the staging."""
    return plain_body(group, _planes(group._replace(slots=PLAIN_SLOTS), rows, entries, new))


def _planes(group: LayerGroup, rows: int, entries: int, new: Allocate) -> tuple[Tensor, ...]:
    """Return the tensors of keys and values, [L, R, H, C, ...] each; if heads are ragged [1, R, 1, L H C, ...]."""
    layers, tensors = len(group.layers), []
    for plane in group.spec.planes:
        shape = layers, rows, plane.heads, entries
        if isinstance(group.slots.reading, Ragged):
            shape = 1, rows, 1, layers * plane.heads * entries
        for part in encoding_of(plane).parts:
            of_vector = (*shape, *part.shape(plane.width))
            tensors.append(new(of_vector) if part.dtype is None else new(of_vector, dtype=part.dtype))
    return tuple(tensors)


def _centers(group: LayerGroup, rows: int, new: Allocate) -> Tensor | None:
    """Return the centers of encoded keys, float32 [L, R, H, W], without first keys; None for plain ones."""
    key = group.spec.key
    if not encoding_of(key).has_centers:
        return None
    centers = new((len(group.layers), rows, key.heads, key.center_width), dtype=torch.float32)
    centers[..., key.width :] = NO_KEY
    return centers


def _reading(group: LayerGroup, rows: int, entries: int, new: Allocate) -> slots.Pages | slots.Ragged | None:
    reading = group.slots.reading
    if isinstance(reading, Pages):
        return page_index.allocate(group, reading, rows, entries, new)
    if isinstance(reading, Ragged):
        return slots.Ragged(new((len(group.layers), rows, group.spec.key.heads, 2), dtype=torch.int32))
    return None


def _queries(group: LayerGroup, rows: int, new: Allocate) -> Tensor | None:
    """Return the queries [L, R, N + 1, H, G, D] of `keep_queries`; None if nothing reviews the slots."""
    if not group.slots.queries:
        return None
    key = group.spec.key
    return new((len(group.layers), rows, group.slots.queries + 1, key.heads, group.queries, key.width))


def _ledger(group: LayerGroup, rows: int, entries: int, new: Allocate) -> Ledger:
    shape = len(group.layers), rows, group.spec.key.heads, entries
    return Ledger(new(shape, dtype=torch.int32), new((*shape, HISTORY), dtype=torch.uint8))
