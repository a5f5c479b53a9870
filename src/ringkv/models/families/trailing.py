"""Trailing layers that read earlier caches, read from config.json. No torch."""

from ringkv.base.errors import BadWeights
from ringkv.models.base import Sliding
from ringkv.models.fields import Raw, count, optional_count

SHARED = "num_kv_shared_layers"


def trailing_sources(raw: Raw, sliding: Sliding | None) -> tuple[int, ...]:
    """Return for each layer the one whose keys and values it attends to.

    The last `num_kv_shared_layers` attend to those of the last layer before them that has a sliding window too, or has
    none either. Raises BadWeights if there is no such layer.
    """
    layers, local = count(raw, "num_hidden_layers"), set(sliding.layers if sliding else ())
    first = layers - optional_count(raw, SHARED)
    last = {is_local: at for at in range(first) for is_local in (at in local,)}
    try:
        return tuple(at if at < first else last[at in local] for at in range(layers))
    except KeyError:
        raise BadWeights(
            f"config.json has {SHARED} {layers - first} of {layers} layers, and before them none of the same type; "
            "fetch config.json again"
        ) from None
