"""Rotary position embedding (RoFormer, arXiv 2104.09864): queries and keys turned by their absolute position.

N tokens, D head_dim. Frequencies come from `rope`, which knows each checkpoint's scaling.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """The angles of N tokens, as [N, 1, D / 2]: one row turns every head."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, frequencies: Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """Angles for int positions [N] at frequencies float32 [D / 2]; `scale` multiplies both (YaRN's temperature)."""
    angles = (positions[:, None].float() * frequencies)[:, None]
    return Rotation((angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Turn x [N, heads, D]; the pairs are (i, i + D/2), the halves' order of Hugging Face checkpoints."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * by.cos - high * by.sin, high * by.cos + low * by.sin), dim=-1)
