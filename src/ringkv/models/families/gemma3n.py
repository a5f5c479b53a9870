"""Gemma 3n's text models (Google, 2025): four streams (AltUp), per-layer embeddings, KV sharing in trailing layers.

Beside attention is a low-rank branch (LAuReL). The first layers' feed-forwards zero all gates but the largest.
"""

from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.models.altup import AltUpLayer, Streams
from ringkv.models.base import LOCAL, SHARED
from ringkv.models.families.gemma3 import GELU, ropes
from ringkv.models.families.trailing import (
    INSIDE,
    SHARED_LAYERS,
    Trailing,
    inner_text,
    per_layer_inputs,
    trailing_sources,
)
from ringkv.models.fields import Raw, count, flag, optional_count, optional_decimal, with_defaults
from ringkv.models.gaussian_top_k import GaussianTopK
from ringkv.models.layer import SANDWICH, Attention, FeedForward
from ringkv.models.reading import common, refuse, sliding

SUPPORTED = (SHARED_LAYERS, "final_logit_softcapping")
PERIOD = 5  # every fifth layer is global if config.json leaves layer_types out
SPARSITY, SPARSE_LAYERS = 0.95, 10  # of models with more layers, if config.json leaves them out
SPARSITIES = "activation_sparsity_pattern"
SPARSE = "-sparse"  # ends the name of a kind of layer whose feed-forward is sparse
# Defaults of transformers' Gemma3nTextConfig.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262400,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262144,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "intermediate_size": 16384,
    SHARED_LAYERS: 15,
}


@dataclass(frozen=True, kw_only=True)
class Gemma3n(Trailing):
    """count: streams. sparse: layers whose feed-forward is sparse."""

    count: int
    active: int
    is_scaled: bool
    laurel_rank: int
    sparse: tuple[int, ...]
    sparsity: float

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Gemma3n":
        raw = with_defaults(raw, DEFAULTS)
        raw["intermediate_size"] = _one_size(raw["intermediate_size"])
        refuse(raw, *GELU, supported=SUPPORTED)
        global_rope, local_rope = ropes(raw)
        windows = sliding(raw, count(raw, "sliding_window"), lambda layer: (layer + 1) % PERIOD != 0)
        if (inputs := per_layer_inputs(raw)) is None:
            raise UnsupportedModel("hidden_size_per_layer_input 0 is not implemented for Gemma 3n; ringkv supports 256")
        return cls(
            **common(raw, generation, "Gemma3nForCausalLM"),
            rope=global_rope,
            local_rope=local_rope,
            sliding=windows,
            sources=trailing_sources(raw, windows, optional_count(raw, SHARED_LAYERS)),
            inputs=inputs,
            cap=optional_decimal(raw, "final_logit_softcapping") or None,
            attention_bias=flag(raw, "attention_bias"),
            is_scaled=flag(raw, "altup_correct_scale", True),
            laurel_rank=count(raw, "laurel_rank"),
            **_streams(raw),
            **_gates(raw),
        )

    @property
    def streams(self) -> Streams:
        return Streams(self.count, self.hidden_size)

    @property
    def kinds(self) -> tuple[str, ...]:
        kinds = enumerate(super().kinds)
        return tuple(f"{kind}{SPARSE}" if layer in self.sparse else kind for layer, kind in kinds)

    def layer(self, kind: str) -> AltUpLayer:
        is_local, bias = kind.startswith(LOCAL), self.attention_bias
        assert self.inputs
        return AltUpLayer(
            Attention(
                self.hidden_size,
                self.num_heads,
                self.num_kv_heads,
                self.head_dim,
                bias=bias,
                output_bias=bias,
                qk_norm="head",
                scale=1.0,
                shared=SHARED in kind,
                v_norm=True,
            ),
            self._feed_forward(kind.endswith(SPARSE)),
            self.norm,
            self.local_rope if is_local else self.rope,
            norms=SANDWICH,
            window=self.sliding.window if self.sliding and is_local else None,
            inputs=self.inputs.width,
            streams=self.count,
            active=self.active,
            is_scaled=self.is_scaled,
            rank=self.laurel_rank,
        )

    def _feed_forward(self, is_sparse: bool) -> FeedForward:
        sizes = self.hidden_size, self.intermediate_size
        if is_sparse:
            return GaussianTopK(*sizes, activation="gelu_tanh", sparsity=self.sparsity)
        return FeedForward(*sizes, activation="gelu_tanh")


class Gemma3nWithImages:
    """The text model of checkpoints that also take images and sounds."""

    @staticmethod
    def read(raw: Raw, generation: Raw) -> Gemma3n:
        read = Gemma3n.read(inner_text(raw), generation)
        return replace(read, architecture="Gemma3nForConditionalGeneration", **INSIDE)


def _one_size(given: Any) -> Any:
    """Return the size of all feed-forwards, which published files list by layer."""
    if not isinstance(given, list):
        return given
    if not given or any(one != given[0] for one in given):
        raise UnsupportedModel(
            f"intermediate_size {shown(given)} is not implemented; ringkv supports one size for all layers"
        )
    return given[0]


def _streams(raw: Raw) -> dict[str, Any]:
    streams, active = count(raw, "altup_num_inputs"), optional_count(raw, "altup_active_idx")
    if not active < streams or streams < 2:
        raise BadWeights(
            f"config.json has altup_active_idx {active} of {streams} streams, which does not fit; "
            "fetch config.json again"
        )
    return {"count": streams, "active": active}


def _gates(raw: Raw) -> dict[str, Any]:
    layers, given = count(raw, "num_hidden_layers"), raw.get(SPARSITIES)
    if given is None:
        first = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
        given = [SPARSITY] * first + [0.0] * (layers - first)
    if not isinstance(given, list) or len(given) != layers:
        raise BadWeights(f"config.json needs {SPARSITIES} as a list of {layers} numbers; fetch config.json again")
    each = [optional_decimal({SPARSITIES: one}, SPARSITIES) or 0.0 for one in given]
    found = {one for one in each if one}
    if len(found) > 1 or any(one >= 1 for one in found):
        raise UnsupportedModel(
            f"{SPARSITIES} {shown(given)} is not implemented; ringkv supports 0 and one number below 1"
        )
    return {"sparse": tuple(at for at, one in enumerate(each) if one), "sparsity": next(iter(found), SPARSITY)}
