"""SmolLM3 (Hugging Face, 2025): Llama without rotary embedding in every fourth layer (NoPE, arXiv 2305.19466)."""

from dataclasses import dataclass, replace

from ringkv.base.errors import BadWeights
from ringkv.models.base import GLOBAL
from ringkv.models.families.llama import Llama
from ringkv.models.fields import Raw, count, flag
from ringkv.models.layer import Layer
from ringkv.models.reading import FULL, SILU, Refusal, common, refuse, rope

NOPE = "nope"
LISTED = ("no_rope_layers", "no_rope_layer_interval")
PERIOD = 4  # no_rope_layer_interval if config.json leaves it out
WINDOW = Refusal("use_sliding_window", lambda v: not v, "full attention in every layer")


@dataclass(frozen=True, kw_only=True)
class SmolLM3(Llama):
    nope: tuple[int, ...]  # layers whose queries and keys do not rotate

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "SmolLM3":
        refuse(raw, SILU, FULL, WINDOW, supported=LISTED)
        tied = {"tie_word_embeddings": flag(raw, "tie_word_embeddings", True)}
        return cls(
            **common({**raw, **tied}, generation, "SmolLM3ForCausalLM"),
            rope=rope(raw, 2e6),
            nope=_nope(raw),
            attention_bias=flag(raw, "attention_bias"),
            mlp_bias=flag(raw, "mlp_bias"),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(NOPE if layer in self.nope else GLOBAL for layer in range(self.num_layers))

    def layer(self, kind: str) -> Layer:
        layer = super().layer(kind)
        return replace(layer, rope=None) if kind == NOPE else layer


def _nope(raw: Raw) -> tuple[int, ...]:
    """Return the layers with a 0 in `no_rope_layers`, or every `no_rope_layer_interval`-th one."""
    layers, listed = count(raw, "num_hidden_layers"), raw.get(LISTED[0])
    if listed is None:
        period = count(raw, LISTED[1], PERIOD)
        return tuple(range(period - 1, layers, period))
    if not isinstance(listed, list) or len(listed) != layers or not all(one in (0, 1) for one in listed):
        raise BadWeights(
            f"config.json needs {LISTED[0]} as a list of 0 and 1 for its {layers} layers; fetch config.json again"
        )
    return tuple(layer for layer, rotates in enumerate(listed) if not rotates)
