"""The cache that a model's layers need, as plain data. Planner, engine, scheduler and store share it. No torch.

LayerGroup   layers that share a layout: their spec, and a sliding window if they have one
CacheSpec    what one token stores in one layer: a key plane, and a value plane except for latent attention
SlotPart     a tensor of a slot
Plane        one vector per token and head, in a format
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, SINKS
from ringkv.base.zip_sizes import ZipSizes, entry_bytes

PlaneFormat = Literal["plain", "int8", "int4", "zipcache"]
"""The encoding of vectors. plain: elements of the engine's dtype. The others have scales per token and head; per slot
and head a float32 center, which is subtracted from its keys, and the first tokens' keys in float32. int8: 8-bit
integers, a float32 scale. int4: 4-bit integers, a scale and a minimum in float16. Latents have scales by group.
zipcache: see `ZipSizes`."""
IN_CHUNKS: PlaneFormat = "zipcache"


class _Encoded(NamedTuple):
    """Bytes of a stored vector.

    bits: of an element, None for the engine's dtype. scale: bytes of its scale. centers: float32 vectors beside the
    entries of a slot and head. The first one is subtracted from its keys. The others are its first keys, exactly.
    """

    bits: int | None
    scale: int
    centers: int


LATENT_GROUP = 128  # elements of a latent that share a scale
_ENCODED: Mapping[PlaneFormat, _Encoded] = {
    "plain": _Encoded(None, 0, 0),
    "int8": _Encoded(8, 4, 1 + SINKS),
    "int4": _Encoded(4, 4, 1 + SINKS),
}

COUNTS_BYTES = 12  # of three int32: what a step reads of a slot in pages
PIN_BYTES = 4  # of a page and head of such a slot, float32
MAP_BYTES = 4  # of an int32: where a page is, which page is in a place, or a count
HISTORY = 12  # reviews whose high weights are counted, of an entry of a slot that is reviewed
POSITION_BYTES = 4  # of the int32 position of such an entry
PLACE_BYTES = 8  # of two int32: where a head's entries are in a slot that ragged heads divide
WIDTH_UNITS: Mapping[PlaneFormat, int] = {"plain": 1, "int8": 1, "int4": 4, "zipcache": 4}
"""Elements that are packed together: they divide the width of a plane."""
IN_HOST_MEMORY = "memory"
"""The tier of slots that are in the host's memory beside a GPU."""


class PageFormat(NamedTuple):
    """A reading: a step reads some pages of a slot.

    size: entries of a page. on_disk: keys and values are in files. resident: pages of each head that are on a GPU, if
    all are in its host's memory; 0 if they are not.
    """

    size: int
    on_disk: bool = False
    resident: int = 0


Reading = Literal["everything", "ragged"] | PageFormat
"""Which entries of a slot a step reads: everything, with as many entries of each head; ragged heads, or pages."""


class SlotFormat(NamedTuple):
    """How slots store keys and values, and what a step reads of them: an encoding times a reading.

    queries: N, the last queries that slots keep for their reviews; 0 if they have none. skip: the first and last layers
    of a model that store vectors plain; 0 in the format of one group of layers.
    """

    encoding: PlaneFormat = "plain"
    reading: Reading = "everything"
    queries: int = 0
    skip: int = 0

    @property
    def pages(self) -> PageFormat | None:
        """The reading if it is in pages."""
        return self.reading if isinstance(self.reading, PageFormat) else None

    @property
    def is_ragged(self) -> bool:
        """Whether heads have different numbers of entries."""
        return self.reading == "ragged"

    def of(self, layer: int, layers: int) -> "SlotFormat":
        """Return the format of one of so many layers."""
        is_encoded = self.skip <= layer < layers - self.skip
        return self._replace(encoding=self.encoding if is_encoded else "plain", skip=0)


PLAIN_SLOTS = SlotFormat()
SKIPPED: Mapping[PlaneFormat, int] = {"plain": 0, "int8": 0, "int4": 2, "zipcache": 2}
"""Layers at each end that are plain by default: errors of 4 bits cost the most there."""


class Plane(NamedTuple):
    """One vector of `width` elements per token, for each of `heads`.

    group: elements that share a scale, if the format has any, or None for all.
    """

    heads: int
    width: int
    format: PlaneFormat = "plain"
    group: int | None = None

    @property
    def elements(self) -> int:
        """Elements per token."""
        return self.heads * self.width

    @property
    def center_width(self) -> int:
        """Elements per slot and head beside its entries."""
        return self.width * _ENCODED[self.format].centers

    def bytes(self, item: int) -> int:
        """Return the bytes per token; `item` is the bytes of an element of the engine's dtype."""
        return self.heads * sum(self.tensor_bytes(item))

    def tensor_bytes(self, item: int) -> tuple[int, ...]:
        """Return the bytes per token and head of its vector, and of its scales if it has any."""
        encoded = _ENCODED[self.format]
        vector, groups = -(-self.width * (encoded.bits or 8 * item) // 8), -(-self.width // (self.group or self.width))
        return (vector, groups * encoded.scale) if encoded.scale else (vector,)


class CacheSpec(NamedTuple):
    """What one token stores in one layer.

    value: None if values are the first `shared` elements of the keys (multi-head latent attention, arXiv 2405.04434).
    scale: factor on the scores before the softmax, D ** -0.5 unless the model sets another.
    """

    key: Plane
    value: Plane | None
    scale: float
    shared: int = 0

    @classmethod
    def grouped(cls, kv_heads: int, head_dim: int, scale: float | None = None) -> "CacheSpec":
        """Grouped-query attention: a key and a value for each key-value head."""
        plane = Plane(kv_heads, head_dim)
        return cls(plane, plane, head_dim**-0.5 if scale is None else scale)

    @classmethod
    def latent(cls, rank: int, rope: int, scale: float = 1.0) -> "CacheSpec":
        """Multi-head latent attention: `kv_lora_rank` elements, then the `qk_rope_head_dim` of the rotated key."""
        return cls(Plane(1, rank + rope, group=LATENT_GROUP), None, scale, rank)

    @property
    def value_width(self) -> int:
        """Elements of a value."""
        return self.shared if self.value is None else self.value.width

    @property
    def planes(self) -> tuple[Plane, ...]:
        return (self.key,) if self.value is None else (self.key, self.value)

    def bytes(self, item: int) -> int:
        """Return the bytes per token in all planes; `item` is the bytes of an element of the engine's dtype."""
        if self.in_chunks:
            return self.key.heads * entry_bytes(self.key.width)
        return sum(plane.bytes(item) for plane in self.planes)

    def slot_bytes(self, entries: int, item: int) -> int:
        """Return the bytes of a slot of so many entries in one layer."""
        if self.in_chunks:
            return self.key.heads * sum(ZipSizes.of(entries).tensor_bytes(self.key.width, item))
        return entries * self.bytes(item) + self.center_bytes

    @property
    def in_chunks(self) -> bool:
        """Whether tokens are encoded together, as `ZipSizes` describes."""
        return self.key.format == IN_CHUNKS

    @property
    def center_bytes(self) -> int:
        """Bytes per slot and layer beside its entries, float32."""
        return 4 * self.key.heads * self.key.center_width

    def stored_as(self, format: PlaneFormat) -> "CacheSpec":
        """Return this spec in another encoding."""
        value = None if self.value is None else self.value._replace(format=format)
        return self._replace(key=self.key._replace(format=format), value=value)

    def on_rank(self, ranks: int) -> "CacheSpec":
        """Return the spec of the largest of `ranks` tensor-parallel ranks: its heads. A latent has none to divide.

        Raises InvalidRequest if several ranks would have a head, but not as many ranks each head.
        """
        if self.value is None:
            return self
        heads = self.key.heads
        if ranks > heads and ranks % heads:
            raise InvalidRequest(
                f"{heads} key-value heads cannot be divided over {ranks} ranks; use at most {heads}, or a multiple",
                "tensor_parallel",
            )
        most = -(-heads // ranks)
        return self._replace(key=self.key._replace(heads=most), value=self.value._replace(heads=most))


class SlotPart(NamedTuple):
    """A tensor of a slot in the layers of a group, [L, H, ...].

    name: what it stores. heads: 1 if all heads have the same. size: bytes of a layer and head.
    """

    name: str
    layers: int
    heads: int
    size: int

    @property
    def bytes(self) -> int:
        return self.layers * self.heads * self.size


class LayerGroup(NamedTuple):
    """Layers with the same cache spec, whose slots share a layout.

    queries: query heads per key-value head. window: tokens that each token attends to, itself included, or None for
    all. slots: how slots are stored and read. Staging and stored prompts are plain.
    """

    layers: tuple[int, ...]
    spec: CacheSpec
    queries: int
    window: int | None = None
    slots: SlotFormat = PLAIN_SLOTS

    def token_bytes(self, item: int) -> int:
        """Return the bytes of a token in all layers of the group."""
        return len(self.layers) * self.spec.bytes(item)

    def stored_as(self, format: PlaneFormat) -> "LayerGroup":
        """Return this group in another encoding."""
        return self._replace(spec=self.spec.stored_as(format))

    @property
    def in_slots(self) -> "LayerGroup":
        """This group in the encoding of its slots."""
        return self.stored_as(self.slots.encoding)

    def on_rank(self, ranks: int) -> "LayerGroup":
        """Return what the largest of `ranks` tensor-parallel ranks has of this group: see `CacheSpec.on_rank`."""
        sharing = max(1, ranks // self.spec.key.heads)  # ranks that have the same head
        return self._replace(spec=self.spec.on_rank(ranks), queries=-(-self.queries // sharing))

    def slot_bytes(self, capacity: int, item: int) -> int:
        """Return the bytes of a slot in memory, all layers: of `capacity` entries, or of the window if there is one.

        On a GPU: in the GPU's memory.
        """
        entries, pages = self.entries(capacity), self.slots.pages
        are_elsewhere = pages is not None and (pages.on_disk or pages.resident > 0)
        near = pages.resident * pages.size if pages and are_elsewhere else entries
        return len(self.layers) * self.spec.slot_bytes(near, item) + self._beside_bytes(entries, item)

    def file_bytes(self, capacity: int, item: int) -> int:
        """Return the bytes of a slot in files, all layers."""
        return self._all_planes(capacity, item) if self.slots.pages and self.slots.pages.on_disk else 0

    def host_bytes(self, capacity: int, item: int) -> int:
        """Return the bytes of a slot in the host's memory beside a GPU, all layers."""
        return self._all_planes(capacity, item) if self.slots.pages and self.slots.pages.resident else 0

    def _all_planes(self, capacity: int, item: int) -> int:
        return len(self.layers) * (self.spec.slot_bytes(self.entries(capacity), item) - self.spec.center_bytes)

    def step_bytes(self, capacity: int, read: int, item: int) -> int:
        """Return the bytes that a step reads of a full slot, all layers: `read` entries and all digests if in pages."""
        entries = self.entries(capacity)
        if self.slots.pages is None:
            return len(self.layers) * self.spec.slot_bytes(entries, item)
        return len(self.layers) * self.spec.slot_bytes(min(read, entries), item) + self._beside_bytes(entries, item)

    def parts(self, capacity: int, live: int, item: int) -> Iterator[SlotPart]:
        """Yield the tensors that a packet has of a slot with `live` entries, in the order of `cache.body.Body.parts`.

        The group is in the encoding of its slots. Of tensors in chunks, and of those that ragged heads divide, a packet
        has all entries.
        """
        entries = self.entries(capacity)
        if self.spec.in_chunks:
            *tensors, counts = ZipSizes.of(entries).tensor_bytes(self.spec.key.width, item)
            yield from (self._part("chunks", size) for size in tensors)
            yield self._part("counts of chunks", counts)
            return
        for plane in self.spec.planes:
            for size in plane.tensor_bytes(item):
                yield self._part("entries", (entries if self.slots.is_ragged else live) * size, plane.heads)
        if self.spec.center_bytes:
            yield self._part("centers", self.spec.center_bytes // self.spec.key.heads)
        yield from self._beside(entries, live, item)

    def _beside(self, entries: int, live: int, item: int) -> Iterator[SlotPart]:
        """Yield the tensors of a slot beside its planes and centers, but for the maps of pages in a host's memory."""
        key, pages, queries = self.spec.key, self.slots.pages, self.slots.queries
        if pages:
            count = entries // pages.size
            yield self._part("digests", 2 * count * key.width * item)
            yield self._part("pins", count * PIN_BYTES)
            yield self._part("counts of pages", COUNTS_BYTES, 1)
        if self.slots.is_ragged:
            yield self._part("places", PLACE_BYTES)
        if queries:
            yield self._part("queries", (queries + 1) * self.queries * key.width * item)
            yield self._part("positions", live * POSITION_BYTES)
            yield self._part("history", live * HISTORY)

    def _part(self, name: str, size: int, heads: int | None = None) -> SlotPart:
        return SlotPart(name, len(self.layers), heads or self.spec.key.heads, size)

    def _beside_bytes(self, entries: int, item: int) -> int:
        """Return the bytes of a slot beside its planes and centers, all layers."""
        pages, maps = self.slots.pages, 0
        if pages and pages.resident:
            maps = self._part("maps", MAP_BYTES * (entries // pages.size + pages.resident + 1)).bytes
        return maps + sum(part.bytes for part in self._beside(entries, entries, item))

    def entries(self, capacity: int) -> int:
        """Return the entries of a slot: `capacity`, or the window if there is one."""
        return capacity if self.window is None else self.window

    def lane_entries(self, chunk: int) -> int | None:
        """Return the entries that prefill in chunks needs of a prompt in staging; None: one for each token.

        With a sliding window these are the window and the chunk, in whole blocks, since moves are by blocks.
        """
        return None if self.window is None else (-(-(self.window + chunk) // BLOCK) + 1) * BLOCK

    def staged_entries(self, tokens: int, lanes: int, chunk: int) -> int:
        """Return the entries of a staging that holds so many tokens in so many lanes."""
        lane = self.lane_entries(chunk)
        return tokens if lane is None else min(tokens, lanes * lane)


def in_formats(groups: tuple[LayerGroup, ...], slots: SlotFormat, layers: int) -> tuple[LayerGroup, ...]:
    """Divide groups of a model of so many layers by the format of their slots."""
    layers_of: dict[LayerGroup, list[int]] = {}
    for group in groups:
        for layer in group.layers:
            form = slots.of(layer, layers)
            if group.window is not None:  # a ring of the window: nothing is selected
                form = SlotFormat(form.encoding)
            layers_of.setdefault(group._replace(layers=(), slots=form), []).append(layer)
    return tuple(group._replace(layers=tuple(members)) for group, members in layers_of.items())
