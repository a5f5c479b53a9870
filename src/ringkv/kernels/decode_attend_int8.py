"""Attention while decoding over 8-bit keys and values: one float32 scale per token and key-value head.

Vectors are rotated before they are rounded (QuaRot, arXiv 2404.00456, section 4): a few channels of real keys are far
larger than the others, and a rotation spreads them over all elements. Products of rotated vectors are the same. Keys
are stored less a center of their slot and head, as in SageAttention (arXiv 2410.02367, section 4.2): the part that all
keys share adds the same to all scores of a query, so that the softmax does not change.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot, D head_dim.
"""

import math

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.library import LIBRARY, is_native
from ringkv.kernels.partial import Partial

MOST = 127  # an element's largest value


def rotate(vectors: Tensor) -> Tensor:
    """float32 [..., D] times a Hadamard matrix, its own inverse, of order: the largest power of two dividing D."""
    block, half = vectors.shape[-1] & -vectors.shape[-1], 1
    rotated: Tensor = vectors.unflatten(-1, (-1, block))
    while half < block:
        first, second = rotated.unflatten(-1, (-1, 2, half)).unbind(-2)
        rotated = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    return (rotated / math.sqrt(block)).flatten(-2)


def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """[..., D] -> rotated int8 [..., D] and float32 scales [...]: a vector's largest rotated element becomes 127."""
    vectors = rotate(vectors.float())
    largest = vectors.abs().amax(-1, keepdim=True)
    whole = (vectors * torch.where(largest > 0, MOST / largest, 0.0)).round().to(torch.int8)
    return whole, (largest / MOST)[..., 0]


def decode(whole: Tensor, scales: Tensor) -> Tensor:
    """The inverse of `encode`, float32 [..., D]; each rotated element is within half a scale."""
    return rotate(whole.float() * scales[..., None])


def decode_attend_int8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    values: Tensor,
    value_scales: Tensor,
    centers: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> Partial:
    """As `decode_attend`, over keys, values int8 [S, H, C, D] and their scales float32 [S, H, C], changed in place.

    centers: float32 [S, H, D], what was subtracted from every key.
    """
    ops = torch.ops.ringkv
    is_odd = q.shape[-1] % plain.STEP != 0 and is_native("decode_attend_int8")
    attend = ops.decode_attend_int8_any if is_odd else ops.decode_attend_int8
    return Partial(*attend(q, k, v, keys, key_scales, values, value_scales, centers, slot, entry, live, scale))


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    values: Tensor,
    value_scales: Tensor,
    centers: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The same in plain torch: writes, then attends to the decoded slots."""
    rows, at, used = slot.long(), entry.long(), live > 0
    for (whole, scales), new in (((keys, key_scales), k - centers[rows]), ((values, value_scales), v)):
        for plane, fresh in zip((whole, scales), encode(new), strict=True):
            place = rows, slice(None), at
            mask = used.view(-1, *[1] * (fresh.dim() - 1))
            plane[place] = torch.where(mask, fresh, plane[place])
    visible = torch.arange(keys.shape[2], device=q.device) < live[:, None]
    known_keys = decode(keys[rows], key_scales[rows]) + centers[rows][:, :, None]
    known_values = decode(values[rows], value_scales[rows])
    return plain.attend(q, known_keys, known_values, visible[:, None, None], scale)


def _shape(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)


for name in ("decode_attend_int8", "decode_attend_int8_any"):
    LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    register_fake(f"ringkv::{name}", _shape, lib=LIBRARY)
