"""config.json and generation_config.json: wrong types, extreme numbers, deep nesting, truncation and flipped bytes."""

import json
from random import Random
from typing import Any

from bench.fuzz.mutate import cut, deep, flipped, mutated_json, nested
from bench.fuzz.target import Target
from bench.fuzz.tiny_models import CONFIG, GENERATION, check_ordinary, config_files, serve_files, weight_files
from ringkv.models.families.registry import FAMILIES

NUMBERS: Any = (
    0, 1, 2, -1, 0.5, 1e-45, 1e39, float("inf"), float("nan"), 2**31, 2**63, 10**18, 10**400, "8", True, None,
)  # fmt: skip
KINDS: Any = ("default", "linear", "llama3", "yarn", "longrope", "proportional", "", 3, None, [], "x" * 1000)
FACTORS = (
    "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
    "attention_factor", "mscale", "mscale_all_dim", "truncate", "rope_theta", "partial_rotary_factor",
)  # fmt: skip
NAMES = (*FAMILIES, "NoModel", "", "a\nb", 3, None)
BLOCKS: Any = {  # of experts and latent attention
    "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 4,
    "topk_group": 2, "topk_method": "group_limited_greedy", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "mlp_only_layers": [0], "decoder_sparse_step": 1, "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "rope_interleave": True, "partial_rotary_factor": 0.5,
    "cla_share_factor": 2, "embedding_multiplier": 2.0, "attention_multiplier": 0.1, "residual_multiplier": 0.2,
    "logits_scaling": 4.0,
}  # fmt: skip
OWN_INPUTS: Any = {
    "hidden_act": None, "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 16, "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 288, "layer_types": ["full_attention", "full_attention"], "sliding_window": 16,
}  # fmt: skip
SHARING: Any = {  # caches between layers
    "Gemma3nForCausalLM": OWN_INPUTS | {
        "altup_num_inputs": 4, "altup_active_idx": 0, "activation_sparsity_pattern": [0.9, 0.0], "laurel_rank": 8,
        "altup_correct_scale": True, "intermediate_size": [64, 64],
    },
    "Gemma4ForCausalLM": OWN_INPUTS | {
        "per_layer_config": {"1": {"head_dim": 16}}, "global_head_dim": 16, "num_global_key_value_heads": 1,
        "attention_k_eq_v": True, "use_double_wide_mlp": True, "enable_moe_block": True, "num_experts": 8,
        "top_k_experts": 2, "moe_intermediate_size": 32, "use_bidirectional_attention": "vision",
    },
    "HunYuanMoEV1ForCausalLM": {
        "use_cla": True, "cla_share_factor": 2, "num_experts": [8, 8], "moe_topk": 2, "num_shared_expert": [1, 1],
        "moe_intermediate_size": [64, 64], "use_mixed_mlp_moe": True, "rope_scaling": {"type": "dynamic", "alpha": 9},
    },
}  # fmt: skip
OTHERS: Any = {
    "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16, "use_sliding_window": True,
    "max_window_layers": 1, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8, "rope_local_base_freq": 1e4,
    "attention_bias": False, "mlp_bias": False, "text_config": dict(CONFIG),
    "dual_chunk_attention_config": {"original_max_position_embeddings": 64}, "no_rope_layers": [1, 1],
    "quantization_config": {}, "num_experts": 0,
    "rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}},
}  # fmt: skip


def _make(random: Random) -> dict[str, bytes]:
    name = random.choice(("config.json", "config.json", "config.json", "generation_config.json"))
    value = dict(CONFIG if name == "config.json" else GENERATION)
    for _ in range(random.randint(1, 3)):
        value = random.choice((_number, _rope, _family, _blocks, _sharing, _other, _mutated))(random, value)
    damaged = random.choice((cut, flipped, deep)) if random.random() < 0.2 else lambda _, data: data
    return {**config_files(), **weight_files(), name: damaged(random, json.dumps(value).encode())}


def _number(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    return {**value, random.choice(list(value) or ["hidden_size"]): random.choice(NUMBERS)}


def _rope(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    given = {"rope_type": random.choice(KINDS[:4] + KINDS), "factor": 4.0}
    given |= {key: random.choice(NUMBERS) for key in random.sample(FACTORS, random.randint(0, 4))}
    return {**value, random.choice(("rope_scaling", "rope_parameters")): given}


def _family(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "architectures": random.choice(([random.choice(NAMES)], random.choice(NAMES)))}


def _blocks(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    """Return another family's configuration, some of whose settings are wrong."""
    return _family(random, {**value, **_wrong(random, BLOCKS)})


def _sharing(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    """Return a family's configuration whose layers share caches, with up to two settings that are wrong."""
    name = random.choice(list(SHARING))
    return {**value, **_wrong(random, SHARING[name]), "architectures": [name]}


def _wrong(random: Random, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with up to two that are wrong."""
    names = random.sample(list(settings), random.randint(0, 2))
    return {**settings, **{name: random.choice((*NUMBERS, [], {}, "x")) for name in names}}


def _other(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    key = random.choice(list(OTHERS))
    return {**value, key: random.choice((OTHERS[key], mutated_json(random, OTHERS[key]), random.choice(NUMBERS)))}


def _mutated(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    changed = mutated_json(random, value)
    return changed if isinstance(changed, dict) else {**value, random.choice(list(CONFIG)): nested(random, changed)}


CONFIGS = Target("config.json of a model directory", _make, serve_files, check_ordinary)
