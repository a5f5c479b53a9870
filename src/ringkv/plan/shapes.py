"""Shape: the sizes that a model's memory depends on, and a catalogue of shapes, also of models that we cannot run."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ringkv.base.cache_spec import CacheSpec
from ringkv.base.errors import UnknownModel
from ringkv.models.config import ModelConfig


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    cache: CacheSpec  # of each layer
    parameters: int
    active: int  # parameters that a decode step of one token reads, including the vocabulary projection
    vocabulary: int  # parameters of that projection, and of the embedding
    vocab: int  # tokens
    tied: bool  # the projection and the embedding are one matrix
    context: int  # longest prompt plus output
    native: str  # dtype of the published weights

    @classmethod
    def of(cls, config: ModelConfig, name: str) -> "Shape":
        """The shape of a model that we can run. An input embedding that is not tied is not counted as active."""
        count = parameters(config)
        looked_up = 0 if config.tied_embeddings else config.vocab_size * config.hidden_size
        return cls(
            name=name,
            layers=config.num_layers,
            cache=CacheSpec.grouped(config.num_kv_heads, config.head_dim),
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
    """Return a shape of the catalogue. Raises `UnknownModel` with all names."""
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
    latent = "latent" in fields
    spec = CacheSpec.latent(**fields.pop("latent")) if latent else CacheSpec.grouped(**fields.pop("heads"))
    return Shape(name=name, cache=spec, **fields)
