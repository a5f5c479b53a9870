"""RMS normalisation (Zhang and Sennrich, arXiv 1910.07467)."""

from typing import NamedTuple

import torch
from torch import Tensor


class RMSNorm(NamedTuple):
    """RMS normalisation of x [M, in]: x / rms(x) * (offset + weight). weight [in]: None if x is normalised already."""

    weight: Tensor | None
    eps: float = 0.0
    offset: float = 0.0


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / rms(x) * weight over the last dimension. The mean square is float32, the product x's dtype.

    With an `offset` (Gemma's is 1) the factor is offset + weight and the product is float32.
    """
    return wide_norm(x, weight, eps, offset).to(x.dtype) if offset else unweighted_norm(x, eps).to(x.dtype) * weight


def wide_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return the same in float32, not rounded, as a compiled graph computes it between other operations."""
    return unweighted_norm(x, eps) * (offset + weight.float())


def unweighted_norm(x: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) in float32, without a weight."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
