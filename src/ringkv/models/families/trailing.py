"""KV sharing in trailing layers, and per-layer embeddings: what Gemma 3n and 4 have in common. No torch."""

from typing import Any

from ringkv.base.errors import BadWeights
from ringkv.models.base import Change, ModelConfig, Sliding, decoder
from ringkv.models.families.gemma3 import OUTER, text_of
from ringkv.models.fields import Raw, count, optional_count, optional_decimal
from ringkv.models.gemma_layers import PerLayerInputs
from ringkv.models.layer import Layer
from ringkv.models.reading import Fields

SHARED_LAYERS = "num_kv_shared_layers"
INPUTS, INPUTS_WIDTH = "hidden_size_per_layer_input", 256  # if config.json leaves it out; 0 and null are none
TOWERS = tuple(f"model.{name}.*" for name in ("vision_tower", "embed_vision", "audio_tower", "embed_audio"))
"""Tensors for images and sounds."""


def inner_text(raw: Raw, architecture: str) -> tuple[Raw, dict[str, Any]]:
    """Return the settings of the text model, and where its tensors are if the model also takes images and sounds."""
    if not architecture.endswith("ForConditionalGeneration"):
        return raw, {}
    return text_of(raw, (*OUTER, "tie_word_embeddings")), {"body": "model.language_model", "unused": TOWERS}


def trailing(
    raw: Raw,
    fields: Fields,
    layer: Layer,
    *changes: Change,
    sliding: Sliding | None,
    inputs: PerLayerInputs | None,
    body: str = "model",
    unused: tuple[str, ...] = (),
    **more: Any,
) -> ModelConfig:
    """Return a decoder whose trailing layers share caches. Checkpoints may have keys and values of these, too."""
    source = trailing_sources(raw, sliding)
    shared = (index for index, read in enumerate(source) if read != index)
    return decoder(
        fields,
        layer,
        *changes,
        sliding=sliding,
        kv_source=source,
        embed_scale=float(fields["hidden_size"] ** 0.5),
        logit_cap=optional_decimal(raw, "final_logit_softcapping") or None,
        per_layer_inputs=inputs,
        body=body,
        unused=(*unused, *(f"{body}.layers.{index}.self_attn.[kv]_*" for index in shared)),
        **more,
    )


def trailing_sources(raw: Raw, sliding: Sliding | None) -> tuple[int, ...]:
    """Return for each layer the one whose keys and values it attends to.

    The last `num_kv_shared_layers` layers attend to those of the last layer before them that has a sliding window too,
    or has none either. Raises BadWeights if there is no such layer.
    """
    layers, local = count(raw, "num_hidden_layers"), set(sliding.layers if sliding else ())
    first = layers - (shared := optional_count(raw, SHARED_LAYERS))
    last = {layer in local: layer for layer in range(first)}
    try:
        return tuple(layer if layer < first else last[layer in local] for layer in range(layers))
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
