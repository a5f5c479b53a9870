"""The encoding int8: rotated 8-bit integers [D] and one float32 scale per vector.

Vectors are rotated before they are rounded (QuaRot, arXiv 2404.00456, section 4): a few channels of real keys are far
larger than the others, and a rotation spreads them over all elements. It does not change dot products.

D elements of a vector.
"""

import torch
from torch import Tensor

from ringkv.kernels.constants import MAX_INT8
from ringkv.kernels.hadamard import rotate


def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., D] to rotated int8 [..., D] and float32 scales [...].

    A vector's largest rotated element becomes 127.
    """
    vectors = rotate(vectors.float())
    largest = vectors.abs().amax(-1, keepdim=True)
    quantised = (vectors * torch.where(largest > 0, MAX_INT8 / largest, 0.0)).round().to(torch.int8)
    # By a tensor, since CUDA multiplies by the inverse of a number, which rounds twice.
    return quantised, (largest / torch.full_like(largest, MAX_INT8))[..., 0]


def decode(quantised: Tensor, scales: Tensor) -> Tensor:
    """Invert `encode`: float32 [..., D]; each rotated element is within half a scale."""
    return rotate(quantised.float() * scales[..., None])
