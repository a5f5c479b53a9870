"""Decode attention over e4m3 keys and values (arXiv 2209.05433) with one float16 scale per token and key-value head.

Vectors are not rotated: floats round each element relative to itself.

D elements of a vector.
"""

import torch
from torch import Tensor

from ringkv.kernels.encoded_attend import Encoding, register, register_cuda
from ringkv.kernels.half_scales import half_scale

MAX_E4M3 = 448.0


def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., D] to e4m3 bytes uint8 [..., D] and float16 scales [...].

    A vector's largest element becomes 448, unless the scale would be below 2**-14.
    """
    vectors = vectors.float()
    largest = vectors.abs().amax(-1, keepdim=True)
    # By a tensor, since CUDA multiplies by the inverse of a number, which rounds twice.
    scales = half_scale(largest / torch.full_like(largest, MAX_E4M3))
    quantised = (vectors / scales.float()).clamp(-MAX_E4M3, MAX_E4M3).to(torch.float8_e4m3fn)
    return quantised.view(torch.uint8), scales[..., 0]


def decode(quantised: Tensor, scales: Tensor) -> Tensor:
    """Invert `encode`: float32 [..., D]; each element is within e4m3's rounding, 2**-4 of itself."""
    return quantised.view(torch.float8_e4m3fn).float() * scales.float()[..., None]


FP8 = Encoding(encode, decode)
decode_attend_fp8, reference = register("decode_attend_fp8", FP8, FP8)
register_cuda("decode_attend_fp8", "fp8")
