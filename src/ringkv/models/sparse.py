"""Sparse: a family whose layers have a mixture of experts, in place of its dense relative's feed-forward. No torch."""

from dataclasses import dataclass, replace

from ringkv.models.base import ModelConfig
from ringkv.models.experts import Experts
from ringkv.models.layer import Layer

DENSE = "-dense"  # ends the name of a kind of layer without experts


@dataclass(frozen=True, kw_only=True)
class Sparse(ModelConfig):
    """Comes before the dense family among a class's bases. dense: the layers without experts."""

    experts: Experts
    dense: tuple[int, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        kinds = enumerate(super().kinds)
        return tuple(f"{kind}{DENSE}" if layer in self.dense else kind for layer, kind in kinds)

    def layer(self, kind: str) -> Layer:
        layer = super().layer(kind.removesuffix(DENSE))  # type: ignore[safe-super]
        return layer if kind.endswith(DENSE) else replace(layer, feed_forward=self.experts)
