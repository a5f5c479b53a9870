"""rotatable: which models can be rotated (`ringkv rotate`), and which rotations suit their sizes. No torch."""

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.base import ModelConfig
from ringkv.models.layer import PRE, Attention, FeedForward, Layer
from ringkv.models.online import NONE, rotating


def refuse_unrotatable(config: ModelConfig) -> None:
    """Raise UnsupportedModel, naming what is in the way, unless rotated weights give the model the same logits."""
    layers = [config.layers[kind] for kind in sorted(config.layers)]
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


def refuse_online(config: ModelConfig) -> None:
    """Raise BadWeights, or UnsupportedModel, unless every layer can have the online rotations of config.json."""
    online = config.online
    if online == NONE:
        return
    refuse_unrotatable(config)
    for layer in (rotating(layer, online) for layer in config.layers.values()):
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.feed_forward, FeedForward)
        down, heads = layer.feed_forward.intermediate, layer.attention.heads
        for name, size, block in (("down_proj", down, online.down), ("o_proj", heads, online.heads)):
            if size % block:
                raise BadWeights(
                    f"config.json rotates {block} inputs of {name}, which do not divide {size}; rotate it again"
                )
