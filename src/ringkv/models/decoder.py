"""The decoder of the Llama family: Llama, Mistral, SmolLM2, Qwen2, Qwen3. Weights to logits, one layer a function.

N tokens, H key-value heads, G query heads per key-value head, D head_dim. A layer is pure: its weights come in as
tensors, so that one static graph serves all layers, and it meets the cache only in `attend`.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.kernels.linear import linear
from ringkv.layers.norm import rms_norm
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

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        """int tokens [N] -> [N, hidden]."""
        return F.embedding(tokens, weights["embed"])

    def rotation(self, positions: Tensor) -> Rotation:
        """Angles of int positions [N]; computed once a step, used by every layer."""
        return rotation(positions, self._frequencies, self._rope_scale, self.dtype)

    def layer(self, x: Tensor, turn: Rotation, weights: Weights, attend: Attend) -> Tensor:
        """One transformer block on x [N, hidden]."""
        eps = self.config.rms_norm_eps
        x = x + self._attention(rms_norm(x, weights["input_norm"], eps), turn, weights, attend)
        return x + self._mlp(rms_norm(x, weights["post_norm"], eps), weights)

    def logits(self, x: Tensor, weights: Weights) -> Tensor:
        """Final norm and vocabulary projection: [N, hidden] -> float32 [N, vocab]."""
        x = rms_norm(x, weights["final_norm"], self.config.rms_norm_eps)
        head = weights["embed" if self.config.tied_embeddings else "head"]
        return linear(x, head).float()

    def _attention(self, x: Tensor, turn: Rotation, weights: Weights, attend: Attend) -> Tensor:
        config = self.config
        heads, width = config.num_kv_heads, config.head_dim
        q, k, v = _linear(x, weights, "qkv").view(len(x), -1, width).split((config.num_heads, heads, heads), dim=1)
        if config.qk_norm:
            q = rms_norm(q, weights["q_norm"], config.rms_norm_eps)
            k = rms_norm(k, weights["k_norm"], config.rms_norm_eps)
        q, k = rotate(q, turn), rotate(k, turn)
        out = attend(q.reshape(len(x), heads, -1, width), k, v)
        return _linear(out.reshape(len(x), -1), weights, "output")

    def _mlp(self, x: Tensor, weights: Weights) -> Tensor:
        gate, up = _linear(x, weights, "gate_up").chunk(2, dim=-1)
        return _linear(F.silu(gate) * up, weights, "down")


def _linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return linear(x, weights[name], weights.get(f"{name}_bias"))
