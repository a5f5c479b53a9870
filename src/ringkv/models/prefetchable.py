"""prefetchable: which layers' pages can be fetched one layer ahead (`kv_prefetch`). No torch."""

from ringkv.base.errors import InvalidRequest
from ringkv.models.base import ModelConfig
from ringkv.models.layer import Attention, Layer


def refuse_unprefetchable(config: ModelConfig) -> None:
    """Raise InvalidRequest if no queries can be predicted from what enters a layer."""
    layers = map(config.layer, config.kinds)
    if any(type(layer) is not Layer or not isinstance(layer.attention, Attention) for layer in layers):
        raise InvalidRequest(
            f"kv_prefetch is not implemented for layers with inputs of their own ({config.architecture}); leave it out",
            "kv_prefetch",
        )


def prefetched_kinds(config: ModelConfig) -> tuple[str, ...]:
    """Return the variants of layers in pages that are prefetched, each while another layer computes.

    A layer that shares another's cache is not: its pages would take the places of the other's.
    """
    groups = (config.groups[place.group] for place in config.places)
    layers = zip(config.variants, config.kv_source, groups, strict=True)
    owners = [variant for at, (variant, source, group) in enumerate(layers) if source == at and group.pages]
    return tuple(dict.fromkeys(owners))
