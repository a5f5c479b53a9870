"""gguf_windows: the layers of a GGUF that have a sliding window, as config.json has them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_fields import layer_count, positive


@dataclass(frozen=True)
class Windows:
    """The sliding window of an architecture: its layers and its settings.

    period: the last of each so many layers attends to all tokens; 0: none does; None: the file has to name the layers.
    settings: what config.json has besides, if a layer has a window. local: layers with one differ otherwise, too, so
    they are named even if the window is as long as the context.
    """

    period: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    local: bool = False


def window_settings(gguf: GGUF, kind: str, windows: Windows) -> dict[str, Any]:
    """Return sliding_window, layer_types and what goes with them. Raises UnsupportedModel or BadWeights."""
    key = f"{kind}.attention.sliding_window"
    if gguf.get(key, 0) == 0:
        return {"sliding_window": None}
    window = positive(gguf, key)
    if window >= positive(gguf, f"{kind}.context_length") and not windows.local:
        return {"sliding_window": None}
    types = ["sliding_attention" if local else "full_attention" for local in _local(gguf, kind, windows, window)]
    return {"sliding_window": window, "layer_types": types, **windows.settings}


def _local(gguf: GGUF, kind: str, windows: Windows, window: int) -> list[bool]:
    """Return for each layer whether it has a window."""
    key, layers = f"{kind}.attention.sliding_window_pattern", layer_count(gguf, kind)
    given = gguf.get(key, windows.period)
    if given is None:
        raise UnsupportedModel(
            f"{gguf.path} has sliding_window {window} and does not name its layers; fetch this model as safetensors"
        )
    if type(given) is int and given >= 0:
        return [given == 0 or (layer + 1) % given != 0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or not all(one in (0, 1) for one in given):
        raise BadWeights(
            f"{gguf.path} has {key} {shown(given)}, a period or true and false for its {layers} layers is needed; "
            "fetch another copy of the model"
        )
    return [bool(one) for one in given[:layers]]
