"""online: the rotations that a rotated checkpoint leaves to the running model. No torch.

`ringkv rotate` multiplies weights by orthogonal matrices, so that the model computes the same and its activations have
no outliers (QuaRot, arXiv 2404.00456). Rotations that no earlier weight can absorb run online.
"""

from dataclasses import dataclass, replace

from ringkv.base.errors import BadWeights
from ringkv.models.fields import Raw, count, table
from ringkv.models.layer import Attention, FeedForward, Layer

METHOD = "ringkv-rotated"
"""The quant_method and the model_type in a rotated checkpoint's config.json."""


@dataclass(frozen=True)
class OnlineRotations:
    """How many neighbours a Hadamard matrix mixes; a power of two, and 1 if it mixes nothing.

    down: elements of the down projection's input. heads: query heads, each element with that of the others.
    """

    down: int = 1
    heads: int = 1


NONE = OnlineRotations()


def online_rotations(raw: Raw) -> OnlineRotations:
    """Return the rotations that a config.json has. Raises BadWeights for a size that is not a power of two."""
    settings = raw.get("quantization_config")
    if not isinstance(settings, dict) or settings.get("quant_method") != METHOD:
        return NONE
    online = table(settings, "online")
    rotations = OnlineRotations(count(online, "down_proj", 1), count(online, "o_proj", 1))
    for name, size in (("down_proj", rotations.down), ("o_proj", rotations.heads)):
        if size & (size - 1):
            raise BadWeights(f"config.json rotates {size} inputs of {name}, a power of two is needed; rotate it again")
    return rotations


def rotating(layer: Layer, online: OnlineRotations) -> Layer:
    """Return the layer with these rotations."""
    if online == NONE:
        return layer
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.feed_forward, FeedForward)
    attention = replace(layer.attention, rotated_heads=online.heads)
    return replace(layer, attention=attention, feed_forward=replace(layer.feed_forward, rotated=online.down))
