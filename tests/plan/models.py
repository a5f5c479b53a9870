"""Configurations written out by hand from the models' published config.json."""

from ringkv.models.config import ModelConfig, parse_config


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
    family: str = "Llama",
) -> ModelConfig:
    return parse_config(
        {
            "architectures": [f"{family}ForCausalLM"],
            "vocab_size": vocab,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": context,
            "tie_word_embeddings": tied,
        }
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
    family="Qwen2",
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


def qwen3(layers: int, hidden: int, intermediate: int, heads: int, tied: bool) -> ModelConfig:
    return config(
        vocab=151936,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        context=40960,
        tied=tied,
        family="Qwen3",
    )


QWEN3 = {
    "qwen3-0.6b": qwen3(28, 1024, 3072, 16, tied=True),
    "qwen3-1.7b": qwen3(28, 2048, 6144, 16, tied=True),
    "qwen3-4b": qwen3(36, 2560, 9728, 32, tied=True),
    "qwen3-8b": qwen3(36, 4096, 12288, 32, tied=False),
    "qwen3-14b": qwen3(40, 5120, 17408, 40, tied=False),
    "qwen3-32b": qwen3(64, 5120, 25600, 64, tied=False),
}
