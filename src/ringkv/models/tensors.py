"""Which checkpoint tensors make up each of our weights: q, k and v become one matrix, gate and up another.

No torch. Names on the right are Hugging Face's; parts are stacked along their first dimension.
"""

from typing import NamedTuple

from ringkv.models.config import ModelConfig


class Part(NamedTuple):
    name: str
    shape: tuple[int, ...]


Parts = dict[str, tuple[Part, ...]]
IGNORED = ("rotary_emb.inv_freq",)  # derived buffers that old checkpoints carry


def shared_tensors(config: ModelConfig) -> Parts:
    """Weights that exist once: embedding, final norm and, unless tied, the vocabulary projection."""
    table = (config.vocab_size, config.hidden_size)
    parts: Parts = {
        "embed": (Part("model.embed_tokens.weight", table),),
        "final_norm": (Part("model.norm.weight", (config.hidden_size,)),),
    }
    return parts if config.tied_embeddings else parts | {"head": (Part("lm_head.weight", table),)}


def layer_tensors(config: ModelConfig, layer: int) -> Parts:
    """Weights of one layer."""
    hidden, wide, width = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_heads * width, config.num_kv_heads * width
    qkv = (("q_proj", query), ("k_proj", key), ("v_proj", key))
    at = f"model.layers.{layer}"
    parts: Parts = {
        "input_norm": (Part(f"{at}.input_layernorm.weight", (hidden,)),),
        "post_norm": (Part(f"{at}.post_attention_layernorm.weight", (hidden,)),),
    }
    parts |= _matrix("qkv", f"{at}.self_attn", qkv, hidden, config.qkv_bias)
    parts |= _matrix("output", f"{at}.self_attn", (("o_proj", hidden),), query, config.output_bias)
    parts |= _matrix("gate_up", f"{at}.mlp", (("gate_proj", wide), ("up_proj", wide)), hidden, config.mlp_bias)
    parts |= _matrix("down", f"{at}.mlp", (("down_proj", hidden),), wide, config.mlp_bias)
    if config.qk_norm:
        parts |= {f"{x}_norm": (Part(f"{at}.self_attn.{x}_norm.weight", (width,)),) for x in ("q", "k")}
    return parts


def _matrix(ours: str, at: str, rows: tuple[tuple[str, int], ...], columns: int, bias: bool) -> Parts:
    """One linear layer from several: its matrix and, if there is one, its bias."""
    matrix = {ours: tuple(Part(f"{at}.{name}.weight", (n, columns)) for name, n in rows)}
    return matrix | ({f"{ours}_bias": tuple(Part(f"{at}.{name}.bias", (n,)) for name, n in rows)} if bias else {})
