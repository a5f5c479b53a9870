"""variants: one decoder with four kinds of attention or feed-forward, each with its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from examples.train.feed_forward import Experts
from examples.train.initialise import initialise
from examples.train.latent import LatentAttention
from examples.train.model import Decoder, Parts
from examples.train.sizes import Sizes

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """changes: sizes that differ. architecture: the class in transformers that has these weights."""

    architecture: str
    parts: Parts = Parts()  # noqa: RUF009 - frozen
    changes: Mapping[str, int] = field(default_factory=dict)

    def sizes(self, sizes: Sizes) -> Sizes:
        return replace(sizes, **self.changes)

    def decoder(self, sizes: Sizes) -> Decoder:
        decoder = Decoder(self.sizes(sizes), self.parts)
        initialise(decoder, self.sizes(sizes))
        return decoder


VARIANTS: Mapping[str, Variant] = {
    "gqa": Variant("LlamaForCausalLM"),
    "cla2": Variant("LlamaForCausalLM", changes={"share": 2}),
    "mla": Variant("DeepseekV3ForCausalLM", Parts(LatentAttention)),
    "moe": Variant("MixtralForCausalLM", Parts(feed_forward=Experts, feed_forward_name="block_sparse_moe")),
}


def config(variant: Variant, sizes: Sizes, begin: int, end: int) -> dict[str, Any]:
    """Return config.json's content. begin, end: ids of the special tokens."""
    sizes = variant.sizes(sizes)
    return {
        "architectures": [variant.architecture],
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": sizes.context,
        "rope_theta": sizes.theta,
        "rms_norm_eps": sizes.eps,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": begin,
        "eos_token_id": end,
        **OWN[variant.architecture](sizes),
    }


def _llama(sizes: Sizes) -> Config:
    shared = {"cla_share_factor": sizes.share} if sizes.share > 1 else {}
    return {"model_type": "llama", "attention_bias": False, "mlp_bias": False, **shared}


def _deepseek(sizes: Sizes) -> Config:
    """All layers are dense, so the settings of experts have no effect."""
    return {
        "model_type": "deepseek_v3",
        "num_key_value_heads": sizes.heads,
        "head_dim": sizes.rotated,
        "q_lora_rank": None,
        "kv_lora_rank": sizes.rank,
        "qk_rope_head_dim": sizes.rotated,
        "qk_nope_head_dim": sizes.head_dim - sizes.rotated,
        "v_head_dim": sizes.head_dim,
        "rope_interleave": False,
        "first_k_dense_replace": sizes.layers,
        "moe_intermediate_size": sizes.intermediate,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
    }


def _mixtral(sizes: Sizes) -> Config:
    experts = {"num_local_experts": sizes.experts, "num_experts_per_tok": sizes.top_k}
    return {"model_type": "mixtral", "sliding_window": None, **experts}


OWN = {"LlamaForCausalLM": _llama, "DeepseekV3ForCausalLM": _deepseek, "MixtralForCausalLM": _mixtral}
