"""Shape: what the memory of a model depends on, whether we can run it or not; and a catalogue of known ones.

Latent caches (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434) hold one vector a token and layer, shared by
all heads: `kv_lora_rank` numbers and the `qk_rope_head_dim` of the rotated key beside them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from ringkv.base.errors import InvalidRequest, UnknownModel
from ringkv.models.config import ModelConfig


class CacheShape(Protocol):
    """Numbers that one token leaves in one layer's cache, on one of `ranks` tensor-parallel ranks."""

    def numbers(self, ranks: int) -> int: ...


@dataclass(frozen=True)
class HeadCache:
    """Keys and values per key-value head: heads are shared out over the ranks, or repeated when there are too few."""

    kv_heads: int
    head_dim: int

    def numbers(self, ranks: int) -> int:
        if self.kv_heads % ranks and ranks % self.kv_heads:
            raise InvalidRequest(
                f"{self.kv_heads} key-value heads cannot be shared out over {ranks} ranks evenly; "
                "take a divisor or a multiple of their number",
                "tensor_parallel",
            )
        return 2 * max(1, self.kv_heads // ranks) * self.head_dim


@dataclass(frozen=True)
class LatentCache:
    """One latent for all heads: every rank needs all of it."""

    rank: int  # kv_lora_rank
    rope: int  # qk_rope_head_dim

    def numbers(self, ranks: int) -> int:
        return self.rank + self.rope


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    cache: CacheShape
    parameters: int
    active: int  # parameters that one token's step reads, the vocabulary projection among them
    vocabulary: int  # parameters of that projection, and of the embedding
    vocab: int  # tokens
    tied: bool  # they are one
    context: int  # longest prompt plus output
    native: str  # dtype that its weights are published in

    @classmethod
    def of(cls, config: ModelConfig, name: str) -> "Shape":
        """The shape of a model that we can run. Each step reads all but the input embedding's unused rows."""
        count = parameters(config)
        looked_up = 0 if config.tied_embeddings else config.vocab_size * config.hidden_size
        return cls(
            name=name,
            layers=config.num_layers,
            cache=HeadCache(config.num_kv_heads, config.head_dim),
            parameters=count,
            active=count - looked_up,
            vocabulary=config.vocab_size * config.hidden_size,
            vocab=config.vocab_size,
            tied=config.tied_embeddings,
            context=config.context,
            native="bfloat16",
        )


def parameters(config: ModelConfig) -> int:
    """Elements of all weights that the model declares."""
    declared = (config.shared_weights(), *map(config.layer_weights, range(config.num_layers)))
    return sum(weight.elements for weights in declared for weight in weights.values())


def names() -> tuple[str, ...]:
    return tuple(_catalogue())


def known(name: str) -> Shape:
    """A shape of the catalogue. Raises `UnknownModel` with the names there are."""
    try:
        return _catalogue()[name.lower()]
    except KeyError:
        listed = ", ".join(names())
        raise UnknownModel(f"no shape is called {name!r}; give a model directory or one of {listed}") from None


@cache
def _catalogue() -> Mapping[str, Shape]:
    entries = tomllib.loads(files(__package__).joinpath("shapes.toml").read_text(encoding="utf-8"))
    return {name: _read(name, entry) for name, entry in entries.items()}


def _read(name: str, entry: Mapping[str, Any]) -> Shape:
    fields = dict(entry)
    store = LatentCache(**fields.pop("latent")) if "latent" in fields else HeadCache(**fields.pop("heads"))
    return Shape(name=name, cache=store, **fields)
