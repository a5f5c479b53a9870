"""Configurations written out by hand from the models' published config.json."""

from ringkv.models.base import ModelConfig
from ringkv.models.families.llama import Llama
from ringkv.models.families.qwen2 import Qwen2
from ringkv.models.layer import RopeConfig


def config(
    *,
    vocab: int,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    context: int,
    tied: bool = False,
    family: type[Llama] | type[Qwen2] = Llama,
) -> ModelConfig:
    return family(
        architecture=f"{family.__name__}ForCausalLM",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=1e4),
        context=context,
        tied_embeddings=tied,
        eos_ids=(2,),
        bos_id=1,
    )


SMOLLM2 = config(
    vocab=49152,
    hidden=576,
    intermediate=1536,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    context=8192,
    tied=True,
)
QWEN = config(
    vocab=151936,
    hidden=1536,
    intermediate=8960,
    layers=28,
    heads=12,
    kv_heads=2,
    head_dim=128,
    context=32768,
    tied=True,
    family=Qwen2,
)
LLAMA_8B = config(
    vocab=128256,
    hidden=4096,
    intermediate=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    context=131072,
)
LLAMA_70B = config(
    vocab=128256,
    hidden=8192,
    intermediate=28672,
    layers=80,
    heads=64,
    kv_heads=8,
    head_dim=128,
    context=131072,
)
