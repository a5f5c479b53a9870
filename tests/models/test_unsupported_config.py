"""config.json files of models that ringkv does not run: each is refused by name, with what it runs instead."""

from typing import Any

import pytest

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.config import parse_config
from tests.models.test_config import GLOBAL, HUNYUAN, LLAMA, PUBLISHED_GPT_OSS, SHORT_GEMMA3N, SHORT_GEMMA4


@pytest.mark.parametrize(
    ("setting", "named", "supported"),
    [
        ({"architectures": ["Qwen3NextForCausalLM"]}, "Qwen3NextForCausalLM", "Qwen3ForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2", "LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu", "silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq", "safetensors"),
        ({"sliding_window": 1024}, "sliding_window 1024", "full attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention", "full attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "whole head"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary", "whole head"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic", "yarn"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "dynamic", "llama3"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters", "one rotary"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping", "softmax"),
        ({"num_local_experts": 8}, "num_local_experts", "dense"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type", "rotary"),
        ({"rotary_pct": 0.25}, "rotary_pct", "whole head"),
        ({"rope_interleaved": True}, "rope_interleaved", "two halves"),
        ({"use_mrope": True}, "use_mrope", "one position"),
        ({"use_dynamic_ntk": True}, "use_dynamic_ntk", "does not change"),
        ({"no_rope_layer_interval": 4}, "no_rope_layer_interval", "every layer"),
        ({"use_logn_attn": True}, "use_logn_attn", "not scaled"),
        ({"attn_temperature_tuning": True}, "attn_temperature_tuning", "not scaled"),
        ({"attention_multiplier": 0.0078125}, "attention_multiplier 0.0078125", "sqrt"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size", "all tokens"),
        ({"clip_qkv": 8.0}, "clip_qkv", "not clipped"),
        ({"qk_layernorm": True}, "qk_layernorm", "Qwen3ForCausalLM"),
        ({"architectures": ["Qwen3ForCausalLM"], "use_cla": True}, "use_cla", "of its own"),
        ({"num_kv_shared_layers": 10}, "num_kv_shared_layers", "of its own"),
        ({"architectures": ["GraniteMoeHybridForCausalLM"]}, "layer_types None", "attention in every layer"),
        (
            {"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"], "num_local_experts": 8},
            "num_local_experts 8",
            "dense Granite 4 models",
        ),
        ({**HUNYUAN, "use_qk_norm": False}, "use_qk_norm", "query and key norms"),
        ({**HUNYUAN, "num_shared_expert": [1, 2]}, "num_shared_expert", "one shared expert"),
        ({**HUNYUAN, "moe_intermediate_size": [100] * 3}, "moe_intermediate_size", "as wide as the shared one, 200"),
        ({**HUNYUAN, "moe_layer_num_skipped": 1}, "moe_layer_num_skipped", "experts in every layer"),
        ({**HUNYUAN, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic", "yarn"),
        ({"dual_chunk_attention_config": {"chunk_size": 1024}}, "dual_chunk_attention_config", "all tokens"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name_with_what_is(
    setting: dict[str, Any], named: str, supported: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named) as refused:
        parse_config({**LLAMA, **setting})
    assert supported in str(refused.value)


def test_dual_chunk_attention_is_refused_above_the_trained_length_only() -> None:
    dual = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "dual_chunk_attention_config": dual}
    with pytest.raises(UnsupportedModel, match=r"1,010,000 .*max_position_embeddings .* 262,144"):
        parse_config({**qwen, "max_position_embeddings": 1_010_000})
    assert parse_config({**qwen, "max_position_embeddings": 262_144}).context == 262_144


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' .* causal"),
        ({"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        ({"per_layer_config": {"0": {"head_dim": 64}}}, "per_layer_config with other layers"),
        ({"per_layer_config": {"5": {"head_dim": 64}}}, "per_layer_config with different sizes"),
        ({"per_layer_config": {"5": {"sliding_window": 64}}}, "per_layer_config with sliding_window"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor 0.25"),
        ({"layer_types": ["chunked_attention"] * 13}, "layer_types chunked_attention"),
        ({"num_kv_shared_layers": 9}, "num_kv_shared_layers 9 of 13 layers"),
        ({"global_head_dim": 15}, "8 attention heads over 4 key-value heads of 15 elements"),
        ({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 8}, "8 experts per token, of 4"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 2}}}, "at most 1"),
    ],
)
def test_what_gemma4_cannot_run_is_refused_by_name(setting: dict[str, Any], named: str) -> None:
    with pytest.raises((UnsupportedModel, BadWeights), match=named):
        parse_config({"model_type": "gemma4_text", **SHORT_GEMMA4, **setting})


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"intermediate_size": [64, 32]}, "intermediate_size .* one size for all"),
        ({"activation_sparsity_pattern": [0.5] * 10 + [0.9] * 10}, "activation_sparsity_pattern .* one number"),
        ({"activation_sparsity_pattern": [1.0] * 20}, "activation_sparsity_pattern .* below 1"),
        ({"activation_sparsity_pattern": [0.5]}, "a list of 20 numbers"),
        ({"altup_active_idx": 4}, "altup_active_idx 4 of 4 streams"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input 0"),
        ({"num_kv_shared_layers": 17}, "num_kv_shared_layers 17 of 20 layers"),
    ],
)
def test_what_gemma3n_cannot_run_is_refused_by_name(setting: dict[str, Any], named: str) -> None:
    with pytest.raises((UnsupportedModel, BadWeights), match=named):
        parse_config({"model_type": "gemma3n_text", **SHORT_GEMMA3N, **setting})


@pytest.mark.parametrize("setting", [{"swiglu_limit": 6.0}, {"swiglu_alpha": 1.0}])
def test_other_gates_of_gpt_oss_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(UnsupportedModel, match=next(iter(setting))):
        parse_config(PUBLISHED_GPT_OSS | setting)


@pytest.mark.parametrize(
    ("refused", "near"),
    [
        ("Mistral3ForConditionalGeneration", "MistralForCausalLM is, such as mistralai/"),
        ("Qwen3NextForCausalLM", "Qwen3ForCausalLM is, such as Qwen/Qwen3-4B"),
        ("DeepseekV4ForCausalLM", "DeepseekV[23]ForCausalLM is, such as deepseek-ai/DeepSeek"),
    ],
)
def test_a_refused_architecture_is_answered_with_a_model_of_its_kind_that_runs(refused: str, near: str) -> None:
    with pytest.raises(UnsupportedModel, match=near):
        parse_config({**LLAMA, "architectures": [refused]})
