"""gguf_mixtures: the architectures of GGUF files with a mixture of experts, as a table like that of gguf_dense."""

from collections.abc import Mapping
from typing import Any

from ringkv.weights import gguf_gemma4
from ringkv.weights import gguf_parts as parts
from ringkv.weights import gguf_routers as routers
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_architecture import Architecture
from ringkv.weights.gguf_dense import BIASED, GELU, IN_ALL_LAYERS, QWEN
from ringkv.weights.gguf_gemma4_experts import parallel_experts
from ringkv.weights.gguf_gpt_oss import experts, gpt_oss
from ringkv.weights.gguf_heads import partial
from ringkv.weights.gguf_latent import latent, latent_matrices, latent_rope
from ringkv.weights.gguf_parts import whole
from ringkv.weights.gguf_windows import Windows

EXPERT_SIZES = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


def glm4_moe(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return whether queries and keys have norms. No metadata key has it."""
    return {"use_qk_norm": gguf.has("blk.0.attn_q_norm.weight")}


MIXTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        "MixtralForCausalLM",
        "mixtral",
        {**parts.NORMS, **parts.ATTENTION, **parts.MIXTRAL_EXPERTS},
        numbers={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
        windows=IN_ALL_LAYERS,
        paired=True,
    ),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        {**parts.NORMS, **parts.ATTENTION, **parts.EXPERTS, **parts.SHARED_EXPERT},
        numbers={**EXPERT_SIZES, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        fixed={**BIASED, "norm_topk_prob": False},
        router=routers.softmax(normalised=False),
        windows=QWEN,
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {**parts.NORMS, **parts.ATTENTION, **parts.QK_NORMS, **parts.EXPERTS},
        numbers=EXPERT_SIZES,
        fixed={"norm_topk_prob": True},
        windows=QWEN,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        "gpt_oss",
        {
            "attn_norm": whole("input_layernorm"),
            "post_attention_norm": whole("post_attention_layernorm"),
            **parts.SINK_ATTENTION,
            **parts.STACKED_EXPERTS,
        },
        numbers={
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
        },
        router=routers.softmax_of_chosen,
        own=gpt_oss,
        windows=Windows(2),
        merged=experts,
    ),
    "deepseek2": Architecture(  # V3's GGUFs have this, too
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        {**parts.NORMS, **parts.LATENT_ATTENTION, **parts.CORRECTED_EXPERTS},
        heads=latent,
        router=routers.grouped,
        own=latent_rope,
        merged=latent_matrices,
    ),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        {
            "attn_norm": whole("input_layernorm"),
            "post_attention_norm": whole("post_attention_layernorm"),
            **parts.ATTENTION,
            **parts.QK_NORMS,
            **parts.CORRECTED_EXPERTS,
        },
        heads=partial,
        router=routers.corrected,
        own=glm4_moe,
    ),
    "gemma4": Architecture(
        "Gemma4ForCausalLM",
        "gemma4_text",
        {**parts.GEMMA4, **parts.PARALLEL_EXPERTS},
        parts.SHARED_INPUTS,
        numbers={
            "num_experts": "expert_count",
            "top_k_experts": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
        },
        fixed=GELU,
        heads=gguf_gemma4.heads,
        feed_forward=gguf_gemma4.feed_forward,
        scaling=gguf_gemma4.unscaled,
        own=gguf_gemma4.gemma4_experts,
        windows=gguf_gemma4.WINDOWS,
        merged=parallel_experts,
    ),
    "hunyuan-moe": Architecture(  # alpha is already in the rotary base
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        {**parts.NORMS, **parts.ATTENTION, **parts.ROTATED_NORMS, **parts.HUNYUAN_EXPERTS},
        numbers={
            "num_experts": "expert_count",
            "moe_topk": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "num_shared_expert": "expert_shared_count",
        },
    ),
}
"""Mixtures of experts, by general.architecture."""
