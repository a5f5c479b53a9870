"""The decoder of the Llama family: Llama, Mistral, SmolLM2, Qwen2, Qwen3. Weights to logits, one layer a function.

N tokens, H key-value heads, G query heads per key-value head, D head_dim. A layer is pure: its weights come in as
tensors, so that one static graph serves all layers, and it meets the cache only in `attend`.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ringkv.base.cache_spec import CacheSpec, LayerGroup
from ringkv.kernels.formats import rows_of
from ringkv.kernels.linear import gated, linear
from ringkv.kernels.norm import rms_norm
from ringkv.layers.rotary import Rotation, rotate, rotation
from ringkv.models.config import ModelConfig
from ringkv.models.rope import frequencies

Weights = Mapping[str, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [N, H, G, D], k and v [N, H, D] -> [N, H, G, D]: all that a model knows of the cache."""


class Decoder:
    """A model's arithmetic. Holds no weights but the rotary frequencies."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype = config, dtype
        angles, self._rope_scale = frequencies(config.rope, config.head_dim)
        self._frequencies = angles.to(device)

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Which layers share a layout, and what they leave in a cache."""
        config = self.config
        spec = CacheSpec.grouped(config.num_kv_heads, config.head_dim)
        return (LayerGroup(tuple(range(config.num_layers)), spec, config.num_heads // config.num_kv_heads),)

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        """int tokens [N] -> [N, hidden]."""
        return rows_of(weights["embed"], tokens)

    def rotation(self, positions: Tensor) -> Rotation:
        """Angles of int positions [N]; computed once a step, used by every layer."""
        return rotation(positions, self._frequencies, self._rope_scale, self.dtype)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [..., N, D] turned by int positions [N], in float32; by negative ones back to where it was before."""
        by = rotation(positions, self._frequencies, 1.0, torch.float32)
        flat = x.float().movedim(-2, 0)
        return rotate(flat.reshape(len(positions), -1, x.shape[-1]), by).view_as(flat).movedim(0, -2)

    def layer(self, x: Tensor, turn: Rotation, weights: Weights, attend: Attend) -> Tensor:
        """One transformer block on x [N, hidden]."""
        x = self._attention(x, turn, weights, attend)
        wide = gated(x, weights["gate_up"], weights.get("gate_up_bias"), weights["post_norm"], self.config.rms_norm_eps)
        return linear(wide, weights["down"], weights.get("down_bias"), residual=x)

    def logits(self, x: Tensor, weights: Weights) -> Tensor:
        """Final norm and vocabulary projection: [N, hidden] -> float32 [N, vocab]."""
        head = weights["embed" if self.config.tied_embeddings else "head"]
        return linear(x, head, None, weights["final_norm"], self.config.rms_norm_eps, dtype=torch.float32)

    def _attention(self, x: Tensor, turn: Rotation, weights: Weights, attend: Attend) -> Tensor:
        config = self.config
        heads, width, eps = config.num_kv_heads, config.head_dim, config.rms_norm_eps
        qkv = linear(x, weights["qkv"], weights.get("qkv_bias"), weights["input_norm"], eps)
        q, k, v = qkv.view(len(x), -1, width).split((config.num_heads, heads, heads), dim=1)
        if config.qk_norm:
            q, k = rms_norm(q, weights["q_norm"], eps), rms_norm(k, weights["k_norm"], eps)
        q, k = rotate(q, turn), rotate(k, turn)
        out = attend(q.reshape(len(x), heads, -1, width), k, v)
        return linear(out.reshape(len(x), -1), weights["output"], weights.get("output_bias"), residual=x)
