"""Models by the name of their architecture: settings for transformers, keys of the GGUF, and tensors to write."""

import math
from typing import Any

import numpy as np
import torch

from tests.engine.test_golden import (
    GEMMA3_ROPES,
    GEMMA3N,
    GEMMA4,
    GEMMA4_MOE,
    GPT_OSS,
    GRANITE,
    GRANITE4,
    GROUPED,
    HUNYUAN,
    LATENT,
    LONGROPE,
    OLMO3_ROPES,
    YARN,
)

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2}
TIED = {"tie_word_embeddings": True}
GEMMA3 = {
    **TIED,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
    "layer_types": None,
}
SIZED = {**EXPERT_KEYS, "expert_feed_forward_length": 64}

NEXTN = "nextn_predict_layers"
CORRECTED_KEYS = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 64,
    "expert_weights_scale": 1.5,
    "leading_dense_block_count": 1,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}
V3 = {"expert_shared_count": 2, "expert_gating_func": 2, "expert_weights_norm": True}
OF_ENTRY = {"attention.head_count_kv": 1, "attention.key_length": 64, "attention.value_length": 32}
OF_HEAD = {"attention.key_length": 64, "attention.value_length": 24}
LATENT_KEYS = {
    **CORRECTED_KEYS,
    "attention.kv_lora_rank": 32,
    "attention.q_lora_rank": 48,
    "rope.dimension_count": 32,
}
DEEPSEEK = {**LATENT, "num_key_value_heads": 4, "q_lora_rank": 48}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
GPT_OSS_KEYS = {
    **SIZED,
    **YARN_KEYS,
    "attention.sliding_window": 16,
}

GRANITE_KEYS = {"embedding_scale": 12.0, "attention.scale": 0.1, "residual_scale": 0.22, "logit_scale": 8.0}
QUANTILE = torch.distributions.Normal(0, 1).icdf(torch.tensor(0.9)).item()
GEMMA3N_KEYS = {
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [True, False] * 3,
    "attention.shared_kv_layers": 3.0,  # a decimal in published files
    "embedding_length_per_layer_input": 16,
    "altup.num_inputs": 4,
    "altup.active_idx": 1,
    "activation_sparsity_scale": [QUANTILE if one else -math.inf for one in GEMMA3N["activation_sparsity_pattern"]],
    "final_logit_softcapping": 2.0,
    "rope.freq_base_swa": 1e4,
}
GEMMA4_KEYS = {
    "attention.sliding_window": 16,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "rope.dimension_count": 64,
    "rope.dimension_count_swa": 16,
    "rope.freq_base_swa": 1e4,
}
GEMMA4_DENSE_KEYS = {
    "attention.sliding_window_pattern": [True, False] * 3,
    "attention.shared_kv_layers": 3,
    "embedding_length_per_layer_input": 16,
    "feed_forward_length": [96] * 3 + [192] * 3,
    "final_logit_softcapping": 2.0,
}
GEMMA4_MOE_KEYS = {
    "attention.sliding_window_pattern": [True, False] * 2,
    "attention.head_count_kv": [2, 1] * 2,
    "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 64,
}
ALPHA = {"rope.freq_base": 1e4 * 50 ** (16 / 14), "rope.scaling.type": "none", "rope.scaling.factor": 1.0}

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen3moe": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True, "head_dim": 32}, SIZED),
    "qwen2moe": (
        "Qwen2Moe",
        {**EXPERTS, "shared_expert_intermediate_size": 96},
        {**SIZED, "expert_shared_feed_forward_length": 96},
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}, EXPERT_KEYS),
    "phi3": ("Phi3", {"sliding_window": None, "pad_token_id": 0}, {"attention.sliding_window": 0}),
    "phi3-longrope": (
        "Phi3",
        {
            "sliding_window": None,
            "pad_token_id": 0,
            "hidden_size": 128,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 64,
            "rope_parameters": LONGROPE,
        },
        {"rope.dimension_count": 24, "rope.scaling.original_context_length": 64},
    ),
    "glm4": ("Glm4", {"pad_token_id": 0, "head_dim": 16, "attention_bias": True}, {"rope.dimension_count": 8}),
    "olmo2": ("Olmo2", {"pad_token_id": 0}, {}),
    "granite": (
        "Granite",
        GRANITE,
        GRANITE_KEYS,
    ),
    "granite4": (
        "GraniteMoeHybrid",
        GRANITE | GRANITE4 | {"layer_types": ["attention"] * 2, "shared_intermediate_size": 96, "mamba_n_heads": 4},
        GRANITE_KEYS,
    ),
    "smollm3": ("SmolLM3", {"pad_token_id": 0, "num_hidden_layers": 4}, {}),
    "gemma3": ("Gemma3", GEMMA3 | {"num_hidden_layers": 7}, {"attention.sliding_window": 16}),
    "gemma3-scaled": (
        "Gemma3",
        GEMMA3 | {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": GEMMA3_ROPES},
        {
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": 2,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "hunyuan-dense": ("HunYuanDenseV1", HUNYUAN | {"head_dim": 16, "attention_bias": False}, ALPHA),
    "hunyuan-moe": (
        "HunYuanMoEV1",
        HUNYUAN | {"num_experts": 4, "moe_topk": 2, "head_dim": 16, "attention_bias": False},
        ALPHA
        | EXPERT_KEYS
        | {"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 96, "expert_shared_count": 1},
    ),
    "gemma3n": ("Gemma3n", GEMMA3N | {"head_dim": 16, "vocab_size_per_layer_input": 90, **TIED}, GEMMA3N_KEYS),
    "gemma4": (
        "Gemma4",
        GEMMA4 | {"head_dim": 16, "vocab_size_per_layer_input": 99, **TIED},
        GEMMA4_KEYS | GEMMA4_DENSE_KEYS,
    ),
    "gemma4-moe": ("Gemma4", GEMMA4_MOE | {"head_dim": 16, **TIED}, GEMMA4_KEYS | GEMMA4_MOE_KEYS),
    "gemma4-split": ("Gemma4", GEMMA4_MOE | {"head_dim": 16, **TIED}, GEMMA4_KEYS | GEMMA4_MOE_KEYS),
    "mistral-sliding": ("Mistral", {"sliding_window": 16}, {"attention.sliding_window": 16}),
    "mixtral-sliding": (
        "Mixtral",
        {"num_local_experts": 4, "sliding_window": 16},
        {**EXPERT_KEYS, "attention.sliding_window": 16},
    ),
    "phi3-sliding": ("Phi3", {"sliding_window": 16, "pad_token_id": 0}, {"attention.sliding_window": 16}),
    "qwen3-sliding": (
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "head_dim": 16},
        {"attention.sliding_window": 16, "attention.sliding_window_pattern": [False, True]},
    ),
    "olmo3": (
        "Olmo3",
        {"pad_token_id": 0, "sliding_window": 16, "num_hidden_layers": 4, "rope_parameters": OLMO3_ROPES},
        {
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": [True, True, True, False],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "gpt-oss": ("GptOss", GPT_OSS | {"head_dim": 16}, GPT_OSS_KEYS),
    "deepseek-v2-lite": (
        "DeepseekV2",
        DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy", "n_shared_experts": 1},
        LATENT_KEYS
        | OF_HEAD
        | {
            "attention.q_lora_rank": None,
            "expert_shared_count": 1,
            "expert_group_count": None,
            "expert_gating_func": 1,
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        DEEPSEEK | {"topk_method": "group_limited_greedy"},
        LATENT_KEYS | OF_HEAD | {"expert_shared_count": 2},
    ),
    "deepseek-v3": (
        "DeepseekV3",
        DEEPSEEK | {"rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.8}},
        LATENT_KEYS | V3 | OF_HEAD | YARN_KEYS | {"rope.scaling.yarn_log_multiplier": 0.08},
    ),
    "deepseek-v3-split": (
        "DeepseekV3",
        DEEPSEEK,
        LATENT_KEYS | V3 | OF_ENTRY | {"attention.key_length_mla": 64, "attention.value_length_mla": 24},
    ),
    "glm4moe": (
        "Glm4Moe",
        GROUPED | {"use_qk_norm": True, "head_dim": 16, "n_shared_experts": 2, "attention_bias": True},
        CORRECTED_KEYS | V3 | {"rope.dimension_count": 8},
    ),
    "glm4moe-air": (
        "Glm4Moe",
        GROUPED | {"use_qk_norm": False, "head_dim": 16, "n_shared_experts": 1, "num_hidden_layers": 3},
        CORRECTED_KEYS | V3 | {"rope.dimension_count": 8, "expert_shared_count": 1, "block_count": 4, NEXTN: 1},
    ),
}
ARCHITECTURES = {
    "gemma4-moe": "gemma4",
    "gemma4-split": "gemma4",
    "granite4": "granite",
    "deepseek-v2-lite": "deepseek2",
    "deepseek-v2": "deepseek2",
    "deepseek-v3": "deepseek2",
    "deepseek-v3-split": "deepseek2",
    "glm4moe-air": "glm4moe",
    "mixtral": "llama",
    "mixtral-sliding": "llama",
    "mistral-sliding": "llama",
    "phi3-longrope": "phi3",
    "phi3-sliding": "phi3",
    "qwen3-sliding": "qwen3",
    "gemma3-scaled": "gemma3",
    "olmo3": "olmo2",
}


def split_latents(model: Any) -> dict[str, np.ndarray | None]:  # type: ignore[type-arg]
    """Return each layer's matrix from latents as newer files have it: keys by head and transposed, and values."""
    found: dict[str, np.ndarray | None] = {}  # type: ignore[type-arg]
    for at, layer in enumerate(model.model.layers):
        key, value = layer.self_attn.kv_b_proj.weight.detach().unflatten(0, (4, -1)).split((32, 24), dim=1)
        found |= {
            f"blk.{at}.attn_kv_b.weight": None,
            f"blk.{at}.attn_k_b.weight": key.mT.contiguous().numpy(),
            f"blk.{at}.attn_v_b.weight": value.contiguous().numpy(),
        }
    return found


def next_token(model: Any) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Return some tensors of a layer that predicts a second token."""
    shapes = {"nextn.eh_proj": (64, 128), "nextn.enorm": (64,), "attn_norm": (64,), "attn_q": (64, 64)}
    return {f"blk.3.{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}


def unused_keys(model: Any) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Return keys and values of layers that share a cache, which published checkpoints have."""
    shapes = {"attn_k": (32, 64), "attn_v": (32, 64), "attn_k_norm": (16,)}
    return {f"blk.{at}.{name}.weight": np.ones(shape, np.float32) for at in (3, 4) for name, shape in shapes.items()}


def stopped_pairs(model: Any) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Return the divisors of the pairs of a global head: a quarter of the pairs rotate."""
    return {"rope_freqs.weight": np.array([1.0] * 8 + [1e30] * 24, np.float32)}


def split_gates(model: Any) -> dict[str, np.ndarray | None]:  # type: ignore[type-arg]
    """Return each layer's gates and ups as two stacks."""
    found: dict[str, np.ndarray | None] = dict(stopped_pairs(model))  # type: ignore[type-arg]
    for at, layer in enumerate(model.model.layers):
        gate, up = layer.experts.gate_up_proj.detach().chunk(2, dim=1)
        found |= {
            f"blk.{at}.ffn_gate_up_exps.weight": None,
            f"blk.{at}.ffn_gate_exps.weight": gate.contiguous().numpy(),
            f"blk.{at}.ffn_up_exps.weight": up.contiguous().numpy(),
        }
    return found


EXTRA = {
    "gemma4": lambda model: stopped_pairs(model) | unused_keys(model),
    "gemma4-moe": stopped_pairs,
    "gemma4-split": split_gates,
    "gemma3n": unused_keys,
    "deepseek-v3-split": split_latents,
    "glm4moe-air": next_token,
}


def corrections(model: Any) -> list[torch.Tensor]:
    """Return the vectors that are added to the scores of routers, for the choice alone."""
    return buffers(model, "correction_bias")


def factors(model: Any) -> list[torch.Tensor]:
    """Return Gemma 4's factors, which are 1 at first: of layers, and of routers' inputs and experts."""
    scales = [tensor for name, tensor in model.named_parameters() if name.endswith(("router.scale", "_expert_scale"))]
    return [*scales, *buffers(model, "layer_scalar")]


def buffers(model: Any, called: str) -> list[torch.Tensor]:
    return [tensor for name, tensor in model.named_buffers() if name.endswith(called)]
