"""KV sharing in trailing layers, and per-layer embeddings: what Gemma 3n and 4 have in common. No torch."""

from dataclasses import dataclass
from typing import Any

from ringkv.base.errors import BadWeights
from ringkv.models.base import ModelConfig, Sliding
from ringkv.models.families.gemma3 import OUTER, text_of
from ringkv.models.fields import Raw, count, optional_count
from ringkv.models.layer import RopeConfig
from ringkv.models.per_layer_inputs import PerLayerInputs

SHARED_LAYERS = "num_kv_shared_layers"
INPUTS, INPUTS_WIDTH = "hidden_size_per_layer_input", 256  # if config.json leaves it out; 0 and null are none
TOWERS = tuple(f"model.{name}.*" for name in ("vision_tower", "embed_vision", "audio_tower", "embed_audio"))
"""Tensors for images and sounds."""
INSIDE: dict[str, Any] = {"body": "model.language_model", "unused": TOWERS}
"""Fields of the text model in a checkpoint that also takes images and sounds."""


def inner_text(raw: Raw) -> Raw:
    """Return the settings of the text model in such a checkpoint."""
    return text_of(raw, (*OUTER, "tie_word_embeddings"))


@dataclass(frozen=True, kw_only=True)
class Trailing(ModelConfig):
    """sources: `kv_source`. inputs, cap: `per_layer_inputs` and `logit_cap`."""

    local_rope: RopeConfig
    sources: tuple[int, ...]
    inputs: PerLayerInputs | None
    cap: float | None
    attention_bias: bool

    @property
    def embed_scale(self) -> float:
        return float(self.hidden_size**0.5)

    @property
    def logit_cap(self) -> float | None:
        return self.cap

    @property
    def per_layer_inputs(self) -> PerLayerInputs | None:
        return self.inputs

    @property
    def kv_source(self) -> tuple[int, ...]:
        return self.sources

    @property
    def ignored(self) -> tuple[str, ...]:
        """Patterns as of other models, and keys and values of layers that share, which checkpoints may have."""
        shared = (layer for layer, source in enumerate(self.sources) if source != layer)
        return (*super().ignored, *(f"{self.at}.layers.{layer}.self_attn.[kv]_*" for layer in shared))


def trailing_sources(raw: Raw, sliding: Sliding | None, shared: int) -> tuple[int, ...]:
    """Return for each layer the one whose keys and values it attends to.

    The last `shared` layers attend to those of the last layer before them that has a sliding window too, or has none
    either. Raises BadWeights if there is no such layer.
    """
    layers, local = count(raw, "num_hidden_layers"), set(sliding.layers if sliding else ())
    first = layers - shared
    last = {at in local: at for at in range(first)}
    try:
        return tuple(at if at < first else last[at in local] for at in range(layers))
    except KeyError:
        raise BadWeights(
            f"config.json has {SHARED_LAYERS} {shared} of {layers} layers, and before them none of the same type; "
            "fetch config.json again"
        ) from None


def per_layer_inputs(raw: Raw) -> PerLayerInputs | None:
    if not (width := optional_count({INPUTS: INPUTS_WIDTH, **raw}, INPUTS)):
        return None
    vocab = count(raw, "vocab_size_per_layer_input")
    return PerLayerInputs(count(raw, "num_hidden_layers"), width, count(raw, "hidden_size"), vocab)
