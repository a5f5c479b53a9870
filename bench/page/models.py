"""The two models' sizes, by hand from their config.json, so that the page can be made where no model is."""

from collections.abc import Mapping
from typing import Any

from ringkv.models.config import ModelConfig, parse_config

_RAW: Mapping[str, Mapping[str, Any]] = {
    "smollm2": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "qwen2.5-coder-1.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    },
}
MODELS: Mapping[str, ModelConfig] = {name: parse_config(raw) for name, raw in _RAW.items()}
SHOWN = {"smollm2": "SmolLM2-135M", "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B"}


def entry_bytes(model: str) -> int:
    """One token's keys and values at 16 bits, all layers and heads."""
    config = MODELS[model]
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2
