"""Our logits against transformers', for each architecture, on tiny random weights."""

from pathlib import Path

import pytest
import torch

from ringkv.base.engine import chunks
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import kept, tiny

FULL = KVChoice("full", budget=128, select=SnapKV(window=8))
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
GEMMA3 = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 4,
    "query_pre_attn_scalar": 32,
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA3N = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 16,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 190,
    "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.9, 0.0, 0.0],
    "laurel_rank": 32,
    "altup_active_idx": 1,
    "final_logit_softcapping": 2.0,
}
GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 16,
    "global_head_dim": 64,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 199,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 2.0,
}
GEMMA4_MOE = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0 + i / 10 for i in range(12)],
    "long_factor": [1.0 + i / 3 for i in range(12)],
}
PHI4_MINI = {
    "hidden_size": 192,
    "pad_token_id": 0,
    "original_max_position_embeddings": 64,
    "rope_parameters": LONGROPE,
}
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
GRANITE4 = {
    "num_local_experts": 0,
    "layer_types": ["full_attention"] * 3,
    "position_embedding_type": "rope",
    "shared_intermediate_size": 160,
    "mamba_n_heads": 6,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "pad_token_id": 0}
GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
}
MSCALE = YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}
LATENT = GROUPED | {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 24,
    "n_shared_experts": 2,
    "num_key_value_heads": 6,
}
GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 64,
    "sliding_window": 16,
    "rope_parameters": YARN | {"truncate": False},
    "pad_token_id": 0,
}
HUNYUAN = {
    "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e4},
    "attention_bias": True,
}
OLMO3_ROPES = {
    "full_attention": YARN,
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}

MODELS = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral-sliding": ("Mistral", {"sliding_window": 16}),
    "qwen2-sliding": ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "gemma3": ("Gemma3", GEMMA3),
    "gemma3-scaled": ("Gemma3", GEMMA3 | {"query_pre_attn_scalar": 80, "rope_parameters": GEMMA3_ROPES}),
    "gemma3n": ("Gemma3n", GEMMA3N),
    "gemma4": ("Gemma4", GEMMA4),
    "gemma4-moe": ("Gemma4", GEMMA4_MOE),
    "phi3": ("Phi3", {"sliding_window": None, "pad_token_id": 0}),
    "phi3-sliding": ("Phi3", {"sliding_window": 16, "pad_token_id": 0}),
    "phi4-mini": ("Phi3", PHI4_MINI),
    "granite": ("Granite", GRANITE),
    "granite4": ("GraniteMoeHybrid", GRANITE | GRANITE4),
    "olmo2": ("Olmo2", {"pad_token_id": 0}),
    "olmo3": ("Olmo3", {"pad_token_id": 0, "sliding_window": 16, "num_hidden_layers": 4}),
    "olmo3-yarn": (
        "Olmo3",
        {"pad_token_id": 0, "sliding_window": 16, "num_hidden_layers": 4, "rope_parameters": OLMO3_ROPES},
    ),
    "smollm3": ("SmolLM3", {"pad_token_id": 0, "num_hidden_layers": 4}),
    "glm4": ("Glm4", {"pad_token_id": 0}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen2-moe": ("Qwen2Moe", EXPERTS | {"shared_expert_intermediate_size": 64}),
    "qwen3-moe": ("Qwen3Moe", EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    "glm4-moe": ("Glm4Moe", GROUPED | {"use_qk_norm": True}),
    "deepseek-v2-lite": ("DeepseekV2", LATENT | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek-v2": ("DeepseekV2", LATENT | {"q_lora_rank": 48, "topk_method": "group_limited_greedy"}),
    "deepseek-v3": ("DeepseekV3", LATENT | {"q_lora_rank": 48, "rope_parameters": MSCALE}),
    "gpt-oss": ("GptOss", GPT_OSS),
    "hunyuan": ("HunYuanDenseV1", HUNYUAN),
    "hunyuan-moe": ("HunYuanMoEV1", {"num_experts": 4, "moe_topk": 2, "intermediate_size": 64}),
    "wide-heads": ("Qwen3", {"head_dim": 64, "hidden_size": 80}),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers_in_prefill_and_decode(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = tiny.save(tmp_path, kind, **changes)
    tokens = torch.randint(3, 199, (100,)).tolist()
    want = kept.logits(theirs, tokens)

    chunked = build(tiny.config(tmp_path, capacity=128, kv=FULL))
    one_shot = build(tiny.config(tmp_path, capacity=128, kv=FULL, chunk=128))
    prompt = tiny.request(tokens[:77])
    torch.testing.assert_close(tiny.stage(one_shot, prompt), want[76], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(tiny.stage(chunked, prompt), want[76], atol=1e-4, rtol=1e-4)
    scored = list(chunked.prompt_logits(tokens, rows=30))
    assert max(map(len, scored)) <= 30
    torch.testing.assert_close(torch.cat(scored), want, atol=1e-4, rtol=1e-4)

    _check_scores(chunked, tokens, want.log_softmax(-1))

    tiny.enter(chunked, prompt, slot=1)
    _, logits = tiny.decode(chunked, 23, slot=1, forced=tokens[77:])
    torch.testing.assert_close(logits, want[76:99], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_decoding_over_a_compressed_cache_is_attention_to_what_each_layer_and_head_keeps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, changes = MODELS[name]
    tiny.save(tmp_path, kind, **changes)
    tokens = torch.randint(3, 199, (130,)).tolist()
    engine = build(tiny.config(tmp_path))
    asked = tiny.request(tokens[:100])
    tiny.enter(engine, asked)
    visible = kept.visible(engine, 100, len(tokens))
    _, logits = tiny.decode(engine, 30, forced=tokens[100:])
    want = kept.logits(kept.model(tmp_path, kind, visible, monkeypatch), tokens)
    torch.testing.assert_close(logits, want[99:129], atol=1e-4, rtol=1e-4)


def _check_scores(engine: LocalEngine, tokens: list[int], want: torch.Tensor) -> None:
    """What each token of a prompt but its first was worth, and the two likeliest in its place."""
    asked = tiny.request(tokens, prompt_logprobs=2)
    works = chunks(asked, 0, engine.begin(asked, 0).tokens, engine.limits.chunk)
    scores = [score for work in works for found in engine.prefill([work]) for score in found]
    values = [score.logprob for score in scores]
    assert values == pytest.approx(want[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist(), abs=1e-4)
    top, ids = want[:-1].topk(2)
    assert [id for score in scores for id, _ in score.top] == ids.flatten().tolist()
    assert [value for score in scores for _, value in score.top] == pytest.approx(top.flatten().tolist(), abs=1e-4)
