"""allocate: the memory of slots, from the encoding and the reading of a group of layers."""

import torch
from torch import Tensor

from ringkv.base.cache_spec import HISTORY, IN_CHUNKS, PLAIN_SLOTS, LayerGroup, PageFormat
from ringkv.base.zip_sizes import ZipSizes
from ringkv.cache import page_index
from ringkv.cache.body import Body
from ringkv.cache.filling import encoding_of
from ringkv.cache.watching.ledger import Ledger
from ringkv.cache.zip_body import ZipBody
from ringkv.kernels import slots, zip_slots
from ringkv.kernels.encoding import NO_KEY
from ringkv.kernels.read_ahead import read_ahead
from ringkv.kernels.slots import Allocate


def allocate_slots(group: LayerGroup, rows: int, entries: int, new: Allocate, tier: Allocate | None = None) -> Body:
    """Return the memory of slots of so many entries. The planes of the group's spec are encoded.

    new: makes a tensor from a shape and an optional dtype; it decides the device, the initial contents and the plain
    dtype. tier: makes the planes of pages that are on disk, or in the host's memory beside a GPU.
    """
    key, pages, queries = group.spec.key, group.slots.pages, group.slots.queries
    if key.format == IN_CHUNKS:
        assert group.spec.value == key, "keys and values have the same heads"
        chunks = zip_slots.allocate((len(group.layers), rows, key.heads), key.width, ZipSizes.of(entries), new)
        return ZipBody(group, slots.Slots("zipcache", chunks), capacity=entries)
    planes, first = _planes(group, rows, entries, tier or new), (len(group.layers), rows)
    stored = slots.Slots(
        encoding=key.format,
        planes=planes,
        centers=_centers(group, rows, new),
        reading=_reading(group, rows, entries, new),
        queries=new((*first, queries + 1, key.heads, group.queries, key.width)) if queries else None,  # `keep_queries`
    )
    from_disk = read_ahead(planes) if pages and pages.on_disk else None
    if not queries:
        return Body(group, stored, None, from_disk)
    positions = new((*first, key.heads, entries), dtype=torch.int32)
    counts = new((*first, key.heads, entries, HISTORY), dtype=torch.uint8)
    return Body(group, stored, Ledger(positions, counts), from_disk)


def allocate_plain(group: LayerGroup, rows: int, entries: int, new: Allocate) -> Body:
    """Return rows of plain entries, such as the staging; a step reads all of them."""
    group = group._replace(slots=PLAIN_SLOTS)
    return Body(group, slots.Slots("plain", _planes(group, rows, entries, new)))


def _planes(group: LayerGroup, rows: int, entries: int, new: Allocate) -> tuple[Tensor, ...]:
    """Return the tensors of keys and values, [L, R, H, C, ...] each; if heads are ragged [1, R, 1, L H C, ...]."""
    layers, tensors = len(group.layers), []
    for plane in group.spec.planes:
        is_ragged = group.slots.is_ragged
        shape = (1, rows, 1, layers * plane.heads * entries) if is_ragged else (layers, rows, plane.heads, entries)
        for part in encoding_of(plane).parts:
            of_vector = (*shape, *part.shape(plane.width))
            tensors.append(new(of_vector) if part.dtype is None else new(of_vector, dtype=part.dtype))
    return tuple(tensors)


def _centers(group: LayerGroup, rows: int, new: Allocate) -> Tensor | None:
    """Return the centers of encoded keys, float32 [L, R, H, W], without first keys, or None for plain ones."""
    key = group.spec.key
    if not encoding_of(key).has_centers:
        return None
    centers = new((len(group.layers), rows, key.heads, key.center_width), dtype=torch.float32)
    centers[..., key.width :] = NO_KEY
    return centers


def _reading(group: LayerGroup, rows: int, entries: int, new: Allocate) -> slots.Pages | slots.Ragged | None:
    reading = group.slots.reading
    if isinstance(reading, PageFormat):
        return page_index.allocate(group, reading, rows, entries, new)
    if reading == "ragged":
        return slots.Ragged(new((len(group.layers), rows, group.spec.key.heads, 2), dtype=torch.int32))
    return None
