"""gguf_architectures: how each architecture of GGUF files is written in Hugging Face layout, as tables.

Tensor names and metadata keys are those of the gguf package's constants. Row orders and fixed settings follow
llama.cpp's conversion and graphs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF


class Part(NamedTuple):
    """What a GGUF's tensor holds: a module in Hugging Face layout, its shape, and which matrix of a stack it is."""

    module: str
    shape: tuple[int, ...]
    expert: int | None = None


Shape = tuple[int, ...]
Parts = Callable[[Shape], Iterator[Part]]
"""Gives the parts of a tensor of this shape."""


def whole(module: str) -> Parts:
    """A tensor that is one module."""
    return lambda shape: iter([Part(module, shape)])


def row(module: str) -> Parts:
    """A vector that is a matrix of one row."""
    return lambda shape: iter([Part(module, (1, *shape))])


def stack(module: str) -> Parts:
    """The matrices of all experts, [experts, rows, columns]; `{}` in `module` is an expert's number."""
    return lambda shape: (Part(module.format(expert), shape[1:], expert) for expert in range(shape[0]))


SHARED = {"token_embd": whole("model.embed_tokens"), "output_norm": whole("model.norm"), "output": whole("lm_head")}
"""Modules outside of layers, by their names in a GGUF."""

NORMS = {"attn_norm": whole("input_layernorm"), "ffn_norm": whole("post_attention_layernorm")}
OUTPUT = {"attn_output": whole("self_attn.o_proj")}
ATTENTION = {
    "attn_q": whole("self_attn.q_proj"),
    "attn_k": whole("self_attn.k_proj"),
    "attn_v": whole("self_attn.v_proj"),
    **OUTPUT,
}
QK_NORMS = {"attn_q_norm": whole("self_attn.q_norm"), "attn_k_norm": whole("self_attn.k_norm")}
DOWN = {"ffn_down": whole("mlp.down_proj")}
FEED_FORWARD = {"ffn_gate": whole("mlp.gate_proj"), "ffn_up": whole("mlp.up_proj"), **DOWN}
FUSED_FEED_FORWARD = {"ffn_up": whole("mlp.gate_up_proj"), **DOWN}
DENSE = {**NORMS, **ATTENTION, **FEED_FORWARD}
EXPERTS = {
    "ffn_gate_inp": whole("mlp.gate"),
    "ffn_gate_exps": stack("mlp.experts.{}.gate_proj"),
    "ffn_up_exps": stack("mlp.experts.{}.up_proj"),
    "ffn_down_exps": stack("mlp.experts.{}.down_proj"),
}
SHARED_EXPERT = {
    "ffn_gate_inp_shexp": row("mlp.shared_expert_gate"),
    "ffn_gate_shexp": whole("mlp.shared_expert.gate_proj"),
    "ffn_up_shexp": whole("mlp.shared_expert.up_proj"),
    "ffn_down_shexp": whole("mlp.shared_expert.down_proj"),
}
MIXTRAL_EXPERTS = {
    "ffn_gate_inp": whole("block_sparse_moe.gate"),
    "ffn_gate_exps": stack("block_sparse_moe.experts.{}.w1"),
    "ffn_up_exps": stack("block_sparse_moe.experts.{}.w3"),
    "ffn_down_exps": stack("block_sparse_moe.experts.{}.w2"),
}

EXPERT_SIZES = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


@dataclass(frozen=True)
class Architecture:
    """One architecture in both layouts.

    modules: of a layer, by their names in a GGUF. numbers, factors: metadata keys of whole numbers and of decimals, by
    their names in config.json. fixed: settings that no key has. paired: rows of query and key heads are in the order of
    rotary pairs. partial: a part of each head may rotate.
    """

    name: str
    model_type: str
    modules: Mapping[str, Parts] = field(default_factory=lambda: DENSE)
    numbers: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    paired: bool = False
    partial: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", "llama", paired=True),  # Mistral's GGUFs have this, too
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", DENSE | QK_NORMS),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        "phi3",
        {**NORMS, "attn_qkv": whole("self_attn.qkv_proj"), **OUTPUT, **FUSED_FEED_FORWARD},
        partial=True,
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        "glm4",
        {
            **NORMS,
            "post_attention_norm": whole("post_self_attn_layernorm"),
            "post_ffw_norm": whole("post_mlp_layernorm"),
            **ATTENTION,
            **FUSED_FEED_FORWARD,
        },
        partial=True,
    ),
    "olmo2": Architecture(
        "Olmo2ForCausalLM",
        "olmo2",
        {
            "post_attention_norm": whole("post_attention_layernorm"),
            "post_ffw_norm": whole("post_feedforward_layernorm"),
            **ATTENTION,
            **QK_NORMS,
            **FEED_FORWARD,
        },
    ),
    "granite": Architecture(
        "GraniteForCausalLM",
        "granite",
        factors={
            "embedding_multiplier": "embedding_scale",
            "attention_multiplier": "attention.scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        paired=True,
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", fixed={"no_rope_layer_interval": 4}, paired=True),
}
"""Dense models, by general.architecture."""

WITH_EXPERTS: Mapping[str, Architecture] = {
    "llama": Architecture(
        "MixtralForCausalLM",
        "mixtral",
        {**NORMS, **ATTENTION, **MIXTRAL_EXPERTS},
        numbers={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
        paired=True,
    ),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        {**NORMS, **ATTENTION, **EXPERTS, **SHARED_EXPERT},
        numbers={**EXPERT_SIZES, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        fixed={"norm_topk_prob": False},
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {**NORMS, **ATTENTION, **QK_NORMS, **EXPERTS},
        numbers=EXPERT_SIZES,
        fixed={"norm_topk_prob": True},
    ),
}
"""Mixtures of experts, by general.architecture."""


def kind_of(gguf: GGUF) -> str:
    """Return general.architecture, which every metadata key of the model begins with."""
    return gguf.text("general.architecture", "none")


def architecture_of(gguf: GGUF) -> Architecture:
    """Return the file's architecture. Raises UnsupportedModel for another one."""
    kind = kind_of(gguf)
    dense = not gguf.get(f"{kind}.expert_count", 0)
    found = (ARCHITECTURES if dense else WITH_EXPERTS).get(kind)
    if found is None:
        what = "" if dense else " with a mixture of experts"
        raise UnsupportedModel(
            f"GGUF architecture {shown(kind)}{what} is not implemented; ringkv runs {', '.join(ARCHITECTURES)}, and "
            f"mixtures of experts of {', '.join(WITH_EXPERTS)}"
        )
    return found
