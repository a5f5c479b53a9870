"""RMS normalisation (Zhang and Sennrich, arXiv 1910.07467), as the operators around it take it."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x / rms(x) * weight over the last dimension; the mean square is taken in float32, the product in x's dtype.

    With an `offset` (Gemma's is 1) the factor is offset + weight, and the product is float32, too.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * (offset + weight.float())).to(x.dtype) if offset else wide.to(x.dtype) * weight
