"""Converts GGUF metadata to the config.json of the model in Hugging Face layout."""

from typing import Any

from ringkv.weights.gguf.architectures import Architecture, architecture_of, kind_of
from ringkv.weights.gguf.fields import layer_count, positive, shape_of, short, token_id, window_settings
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import theta


def config_json(gguf: GGUF) -> dict[str, Any]:
    """Return the content of config.json. Raises UnsupportedModel or BadWeights."""
    kind, architecture = kind_of(gguf), architecture_of(gguf)
    heads = architecture.heads(gguf, kind)
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": shape_of(gguf, "token_embd.weight")[0],
        "hidden_size": positive(gguf, f"{kind}.embedding_length"),
        **architecture.feed_forward(gguf, kind),
        "num_hidden_layers": layer_count(gguf, kind),
        **heads,
        "hidden_act": "silu",
        "rms_norm_eps": short(gguf.decimal(f"{kind}.attention.layer_norm_rms_epsilon", 1e-6)),
        "max_position_embeddings": positive(gguf, f"{kind}.context_length"),
        "rope_theta": theta(gguf, kind),
        "rope_scaling": architecture.scaling(gguf, kind, heads["head_dim"]),
        "attention_bias": gguf.has("blk.0.attn_q.bias"),
        "mlp_bias": gguf.has("blk.0.ffn_up.bias"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        "bos_token_id": token_id(gguf, "bos"),
        "eos_token_id": token_id(gguf, "eos"),
        "torch_dtype": "bfloat16",
        **_numbers(gguf, kind, architecture),
        **architecture.fixed,
        **architecture.router(gguf, kind),
        **architecture.own(gguf, kind),
        **window_settings(gguf, kind, architecture.windows),
    }


def _numbers(gguf: GGUF, kind: str, architecture: Architecture) -> dict[str, Any]:
    """Return the settings that this architecture has as metadata of its own."""
    numbers = {name: positive(gguf, f"{kind}.{key}") for name, key in architecture.numbers.items()}
    factors = {name: short(gguf.decimal(f"{kind}.{key}")) for name, key in architecture.factors.items()}
    return numbers | factors
