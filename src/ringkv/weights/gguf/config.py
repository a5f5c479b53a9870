"""Converts GGUF metadata to the config.json of the model in Hugging Face layout."""

from typing import Any

from ringkv.weights.gguf.architectures import architecture_of
from ringkv.weights.gguf.fields import layer_count, short, token_id, window_settings
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import theta


def config_json(gguf: GGUF) -> dict[str, Any]:
    """Return the content of config.json. Raises UnsupportedModel or BadWeights."""
    architecture = architecture_of(gguf)
    heads = architecture.heads(gguf)
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": gguf.shape("token_embd.weight")[0],
        "hidden_size": gguf.positive(".embedding_length"),
        **architecture.feed_forward(gguf),
        "num_hidden_layers": layer_count(gguf),
        **heads,
        "hidden_act": "silu",
        "rms_norm_eps": short(gguf.decimal(".attention.layer_norm_rms_epsilon", 1e-6)),
        "max_position_embeddings": gguf.positive(".context_length"),
        "rope_theta": theta(gguf),
        "rope_scaling": architecture.scaling(gguf, heads["head_dim"]),
        "attention_bias": gguf.has("blk.0.attn_q.bias"),
        "mlp_bias": gguf.has("blk.0.ffn_up.bias"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        "bos_token_id": token_id(gguf, "bos"),
        "eos_token_id": token_id(gguf, "eos"),
        "torch_dtype": "bfloat16",
        **{name: gguf.positive(key) for name, key in architecture.numbers.items()},
        **{name: short(gguf.decimal(key)) for name, key in architecture.factors.items()},
        **architecture.fixed,
        **architecture.router(gguf),
        **architecture.more(gguf),
        **window_settings(gguf, architecture.windows),
    }
