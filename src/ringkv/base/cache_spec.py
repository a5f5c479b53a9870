"""What a model's layers leave in a cache, as plain data: planner, engine, scheduler and store share it. No torch.

LayerGroup   layers that are laid out together: their spec, and a sliding window if they have one
CacheSpec    what one token leaves in one layer: a key plane, and a value plane except for latent attention
Plane        one vector per token and head, in a format
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ringkv.base.errors import InvalidRequest

PlaneFormat = Literal["plain", "int8"]
"""plain: elements of the engine's dtype. int8: elements of 8 bits, a float32 scale per token and head,
and a float32 vector per slot and head that its keys are stored less."""


class _Stored(NamedTuple):
    """Bytes of one vector: of each element, None if as in the engine's dtype, and of what stands beside them.

    center: bytes per element of a vector that all keys of a slot and head are stored less.
    """

    element: int | None
    beside: int
    center: int


_STORED: Mapping[PlaneFormat, _Stored] = {"plain": _Stored(None, 0, 0), "int8": _Stored(1, 4, 4)}


class Plane(NamedTuple):
    """One vector of `width` elements per token, for each of `heads`."""

    heads: int
    width: int
    format: PlaneFormat = "plain"

    @property
    def elements(self) -> int:
        """Elements that one token leaves."""
        return self.heads * self.width

    def bytes(self, item: int) -> int:
        """Bytes that one token leaves, if an element of the engine's dtype has `item`."""
        stored = _STORED[self.format]
        return self.heads * (self.width * (stored.element or item) + stored.beside)


class CacheSpec(NamedTuple):
    """What one token leaves in one layer.

    value None: values are the first columns of the keys (multi-head latent attention, arXiv 2405.04434). scale: factor
    on the scores before the softmax, D ** -0.5 unless the model says otherwise.
    """

    key: Plane
    value: Plane | None
    scale: float

    @classmethod
    def grouped(cls, kv_heads: int, head_dim: int, scale: float | None = None) -> "CacheSpec":
        """Grouped-query attention: a key and a value for each key-value head."""
        plane = Plane(kv_heads, head_dim)
        return cls(plane, plane, head_dim**-0.5 if scale is None else scale)

    @classmethod
    def latent(cls, rank: int, rope: int, scale: float = 1.0) -> "CacheSpec":
        """Multi-head latent attention: `kv_lora_rank` elements, and the `qk_rope_head_dim` of the rotated key."""
        return cls(Plane(1, rank + rope), None, scale)

    @property
    def planes(self) -> tuple[Plane, ...]:
        return (self.key,) if self.value is None else (self.key, self.value)

    @property
    def elements(self) -> int:
        """Elements that one token leaves in all planes."""
        return sum(plane.elements for plane in self.planes)

    def bytes(self, item: int) -> int:
        """Bytes that one token leaves in all planes, if an element of the engine's dtype has `item`."""
        return sum(plane.bytes(item) for plane in self.planes)

    @property
    def center_bytes(self) -> int:
        """Bytes that each slot takes beside its entries."""
        return self.key.elements * _STORED[self.key.format].center

    def stored_as(self, format: PlaneFormat) -> "CacheSpec":
        """The same in another format."""
        value = None if self.value is None else self.value._replace(format=format)
        return self._replace(key=self.key._replace(format=format), value=value)

    def on_rank(self, ranks: int) -> "CacheSpec":
        """The part of one of `ranks` tensor-parallel ranks: a share of the heads; a latent is repeated on each.

        Raises InvalidRequest if the heads cannot be shared out evenly.
        """
        if self.value is None:
            return self
        heads = self.key.heads
        if heads % ranks and ranks % heads:
            raise InvalidRequest(
                f"{heads} key-value heads cannot be shared out over {ranks} ranks evenly; "
                "take a divisor or a multiple of their number",
                "tensor_parallel",
            )
        own = max(1, heads // ranks)
        return self._replace(key=self.key._replace(heads=own), value=self.value._replace(heads=own))


class LayerGroup(NamedTuple):
    """Layers whose caches look alike, and whose slots are laid out together.

    queries: query heads per key-value head. window: each token sees so many tokens, itself included; None sees all.
    """

    layers: tuple[int, ...]
    spec: CacheSpec
    queries: int
    window: int | None = None

    @property
    def elements(self) -> int:
        """Elements that one token leaves in all layers of the group."""
        return len(self.layers) * self.spec.elements

    def stored_as(self, format: PlaneFormat) -> "LayerGroup":
        """The same in another format."""
        return self._replace(spec=self.spec.stored_as(format))

    def slot_bytes(self, capacity: int, item: int) -> int:
        """Bytes of a slot: of `capacity` entries, or a ring of exactly the window."""
        return len(self.layers) * (self.entries(capacity) * self.spec.bytes(item) + self.spec.center_bytes)

    def entries(self, capacity: int) -> int:
        """Entries of a slot."""
        return capacity if self.window is None else self.window


def places(groups: tuple[LayerGroup, ...]) -> Mapping[int, tuple[int, int]]:
    """Of each layer, in order, its group and its row in that group's planes."""
    found = {layer: (at, row) for at, group in enumerate(groups) for row, layer in enumerate(group.layers)}
    return dict(sorted(found.items()))
