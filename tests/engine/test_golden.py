"""Our logits against transformers', for each architecture, on tiny random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ringkv.base.engine import chunks
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny

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
    "wide-heads": ("Qwen3", {"head_dim": 64, "hidden_size": 80}),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers_in_prefill_and_decode(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = tiny.save(tmp_path, kind, **changes)
    tokens = torch.randint(3, 199, (100,)).tolist()
    want = _their_logits(theirs, tokens)

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


@torch.inference_mode()
def _their_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]
