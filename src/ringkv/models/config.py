"""ModelConfig: what a checkpoint's config.json says, in our words. No torch."""

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base frequency and how it is stretched to longer contexts. Unused fields keep their default.

    factor, original_context: all scaled kinds. low_freq_factor, high_freq_factor: llama3 (Llama 3.1).
    beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate: yarn (arXiv 2309.00071).
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """One decoder of the Llama family."""

    architecture: str  # as config.json's "architectures"[0], e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    context: int  # max_position_embeddings
    qkv_bias: bool
    output_bias: bool  # bias of the attention's output projection
    mlp_bias: bool
    qk_norm: bool  # RMS norm over head_dim of each query and key head (Qwen3)
    tied_embeddings: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
