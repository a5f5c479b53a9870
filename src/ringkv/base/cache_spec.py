"""What a model's layers leave in a cache, as plain data: planner, engine, scheduler and store share it. No torch.

LayerGroup   layers that are laid out together: their spec, and a sliding window if they have one
CacheSpec    what one token leaves in one layer: a key plane, and a value plane except for latent attention
Plane        one vector per token and head
"""

from collections.abc import Mapping
from typing import NamedTuple

from ringkv.base.errors import InvalidRequest


class Plane(NamedTuple):
    """One vector of `width` elements per token, for each of `heads`."""

    heads: int
    width: int

    @property
    def elements(self) -> int:
        """Elements that one token leaves."""
        return self.heads * self.width


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

    @property
    def planes(self) -> tuple[Plane, ...]:
        return (self.key,) if self.value is None else (self.key, self.value)

    @property
    def elements(self) -> int:
        """Elements that one token leaves in all planes."""
        return sum(plane.elements for plane in self.planes)

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


def places(groups: tuple[LayerGroup, ...]) -> Mapping[int, tuple[int, int]]:
    """Of each layer, in order, its group and its row in that group's planes."""
    found = {layer: (at, row) for at, group in enumerate(groups) for row, layer in enumerate(group.layers)}
    return dict(sorted(found.items()))
