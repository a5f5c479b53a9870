"""The encoding int4: rotated 4-bit integers, two in a byte [D / 2], with a scale and a minimum in float16 per vector.

QuaRot's key-value mode (arXiv 2404.00456): vectors are rotated after the rotary embedding, then rounded asymmetrically,
with 5% of their range clipped. A query is rotated like its keys, and the weighted sum of values is rotated back once.

D elements of a vector. It is packed in chunks of CHUNK elements, the last one of D % CHUNK.
"""

import torch
from torch import Tensor

from ringkv.kernels.constants import CHUNK, CLIP, CLIPPED_STEP, MAX_HALF, MAX_INT4, MIN_HALF, NIBBLES
from ringkv.kernels.hadamard import rotate


def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., D] to rotated nibbles uint8 [..., D / 2], and float16 [..., 2]: scale and minimum."""
    rotated = rotate(vectors.float())
    low, high = rotated.aminmax(dim=-1, keepdim=True)
    minimum = half_offset(low * CLIP)
    scale = half_scale((high - low) * CLIPPED_STEP)
    levels = ((rotated - minimum.float()) / scale.float()).round().clamp(0, MAX_INT4)
    return pack(levels.to(torch.uint8)), torch.cat((scale, minimum), -1)


def decode(packed: Tensor, ranges: Tensor) -> Tensor:
    """Invert `encode`: float32 [..., D]; each rotated element in the clipped range is within half a scale."""
    scale, minimum = ranges.float().split(1, -1)
    return rotate(unpack(packed).float() * scale + minimum)


def pack(levels: Tensor) -> Tensor:
    """Pack levels uint8 [..., D] to [..., D / 2]: nibble n of a chunk's 16-bit word i is its element n * words + i."""
    chunks = [chunk.unflatten(-1, (NIBBLES, -1)) for chunk in levels.split(CHUNK, -1)]
    pairs = (chunk[..., 0::2, :] | chunk[..., 1::2, :] << 4 for chunk in chunks)  # [..., 2 bytes, words]
    return torch.cat([pair.transpose(-1, -2).flatten(-2) for pair in pairs], -1)


def unpack(packed: Tensor) -> Tensor:
    """Invert `pack`."""
    chunks = (chunk.unflatten(-1, (-1, 2)).transpose(-1, -2) for chunk in packed.split(CHUNK // 2, -1))
    return torch.cat([torch.stack((pair & 15, pair >> 4), -2).flatten(-3) for pair in chunks], -1)


def half_scale(scales: Tensor) -> Tensor:
    """Round float32 scales [...] to normal numbers of float16, so that a scale changes by at most 2**-11 of it."""
    return scales.clamp(MIN_HALF, MAX_HALF).half()


def half_offset(offsets: Tensor) -> Tensor:
    """Round float32 offsets [...], which may be negative, to float16."""
    return offsets.clamp(-MAX_HALF, MAX_HALF).half()
