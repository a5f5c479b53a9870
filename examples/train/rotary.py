"""rotary: rotates a head's elements by position.

B sequences, H heads, T tokens, D elements.
"""

import torch
from torch import Tensor


def rotate(x: Tensor, theta: float, direction: float = 1.0) -> Tensor:
    """Return [B, H, T, D] with its halves rotated by position (RoPE, arXiv 2104.09864); direction -1 rotates back."""
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * speed * direction
    cos, sin = angle.cos(), angle.sin()
    first, second = x.float().split(half, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
