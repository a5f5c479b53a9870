"""online: the rotations that a rotated checkpoint leaves to the running model; which models can be rotated. No torch.

`ringkv rotate` multiplies weights by orthogonal matrices, so that the model computes the same and its activations have
no outliers (QuaRot, arXiv 2404.00456). What no weight before can absorb is rotated while the model runs.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.fields import Raw, count, table
from ringkv.models.layer import PRE, Attention, FeedForward, Layer

METHOD = "ringkv-rotated"
"""The quant_method of a rotated checkpoint's config.json."""


@dataclass(frozen=True)
class OnlineRotations:
    """How many neighbours a Hadamard matrix mixes; a power of two, and 1 if it mixes nothing.

    down: elements of the down projection's input. heads: query heads, each element with that of the others.
    """

    down: int = 1
    heads: int = 1

    @classmethod
    def largest(cls, intermediate: int, heads: int) -> "OnlineRotations":
        """Return the rotations by the largest powers of two that divide these sizes."""
        return cls(intermediate & -intermediate, heads & -heads)


NONE = OnlineRotations()


class Decoding(Protocol):
    """A `ModelConfig`."""

    @property
    def architecture(self) -> str: ...
    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def shares_caches(self) -> bool: ...
    @property
    def per_layer_inputs(self) -> Any: ...
    @property
    def streams(self) -> Any: ...
    def layer(self, kind: str) -> Layer: ...


def online_rotations(raw: Raw) -> OnlineRotations:
    """Return the rotations that a config.json asks for. Raises BadWeights for sizes that are no powers of two."""
    settings = raw.get("quantization_config")
    if not isinstance(settings, dict) or settings.get("quant_method") != METHOD:
        return NONE
    online = table(settings, "online")
    found = OnlineRotations(count(online, "down_proj", 1), count(online, "o_proj", 1))
    for name, size in (("down_proj", found.down), ("o_proj", found.heads)):
        if size & (size - 1):
            raise BadWeights(f"config.json rotates {size} inputs of {name}, a power of two is needed; rotate it again")
    return found


def refuse_unrotatable(config: Decoding) -> None:
    """Raise UnsupportedModel, naming what is in the way, unless rotated weights give the model the same logits."""
    layers = [config.layer(kind) for kind in sorted(set(config.kinds))]
    faults = [fault for layer in layers if (fault := _fault(layer))]
    if config.per_layer_inputs or config.streams:
        faults.append("per-layer inputs")
    if config.shares_caches:
        faults.append("keys and values that several layers share")
    if faults:
        raise UnsupportedModel(
            f"rotation is not implemented for {faults[0]} ({config.architecture}); ringkv rotates dense models with "
            "grouped-query attention and norms before their blocks (use the model as it is, with --weights int4)"
        )


def _fault(layer: Layer) -> str | None:
    attention, between = layer.attention, layer.feed_forward
    if type(layer) is not Layer:
        return f"{type(layer).__name__} layers"
    if type(attention) is not Attention:
        return "latent attention"
    if attention.v_norm or attention.keys_are_values:
        return "values that are normalised or are the keys"
    if type(between) is not FeedForward:
        return f"{type(between).__name__} layers"
    return None if layer.norms == PRE else "norms after attention or feed-forward"


def rotating(layer: Layer, online: OnlineRotations) -> Layer:
    """Return a layer that rotates like this while it runs."""
    if online == NONE:
        return layer
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.feed_forward, FeedForward)
    attention = replace(layer.attention, rotated_heads=online.heads)
    return replace(layer, attention=attention, feed_forward=replace(layer.feed_forward, rotated=online.down))


def refuse_online(config: Decoding, online: OnlineRotations) -> None:
    """Raise BadWeights, or UnsupportedModel, unless every layer of the model can be rotated like this."""
    if online == NONE:
        return
    refuse_unrotatable(config)
    for layer in (rotating(config.layer(kind), online) for kind in set(config.kinds)):
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.feed_forward, FeedForward)
        _check_divides("down_proj", layer.feed_forward.intermediate, online.down)
        _check_divides("o_proj", layer.attention.heads, online.heads)


def _check_divides(name: str, size: int, block: int) -> None:
    if size % block:
        raise BadWeights(f"config.json rotates {block} inputs of {name}, which do not divide {size}; rotate it again")
