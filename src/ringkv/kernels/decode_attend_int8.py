"""Decode attention over int8 keys and values with one float32 scale per token and key-value head.

Vectors are rotated before they are rounded (QuaRot, arXiv 2404.00456, section 4): a few channels of real keys are far
larger than the others, and a rotation spreads them over all elements. It does not change dot products. A center per
slot and head is subtracted from keys, as in SageAttention (arXiv 2410.02367, section 4.2): it adds the same to all
scores of a query, so the softmax does not change.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot, D head_dim.
"""

import math

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.library import LIBRARY, is_native
from ringkv.kernels.partial import Partial

MAX_INT8 = 127  # the largest element after quantisation


def rotate(vectors: Tensor) -> Tensor:
    """Multiply float32 [..., D] by a Hadamard matrix, which is its own inverse, per block.

    A block has the largest power of two elements that divides D.
    """
    block, half = vectors.shape[-1] & -vectors.shape[-1], 1
    rotated: Tensor = vectors.unflatten(-1, (-1, block))
    while half < block:
        first, second = rotated.unflatten(-1, (-1, 2, half)).unbind(-2)
        rotated = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    return (rotated / math.sqrt(block)).flatten(-2)


def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., D] to rotated int8 [..., D] and float32 scales [...].

    A vector's largest rotated element becomes 127.
    """
    vectors = rotate(vectors.float())
    largest = vectors.abs().amax(-1, keepdim=True)
    quantised = (vectors * torch.where(largest > 0, MAX_INT8 / largest, 0.0)).round().to(torch.int8)
    return quantised, (largest / MAX_INT8)[..., 0]


def decode(quantised: Tensor, scales: Tensor) -> Tensor:
    """Invert `encode`: float32 [..., D]; each rotated element is within half a scale."""
    return rotate(quantised.float() * scales[..., None])


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
    """Do what `decode_attend` does with int8 keys, values [S, H, C, D] and scales float32 [S, H, C], changed in place.

    centers: float32 [S, H, D], subtracted from every key.
    """
    ops = torch.ops.ringkv
    needs_reference = q.shape[-1] % plain.WIDTH_STEP != 0 and is_native("decode_attend_int8")
    attend = ops.decode_attend_int8_any if needs_reference else ops.decode_attend_int8
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
    """Implement `decode_attend_int8` in plain torch: write, then attend to the decoded slots."""
    rows, at, used = slot.long(), entry.long(), live > 0
    for planes, new in (((keys, key_scales), k - centers[rows]), ((values, value_scales), v)):
        for plane, fresh in zip(planes, encode(new), strict=True):
            index = rows, slice(None), at
            mask = used.view(-1, *[1] * (fresh.dim() - 1))
            plane[index] = torch.where(mask, fresh, plane[index])
    visible = torch.arange(keys.shape[2], device=q.device) < live[:, None]
    decoded_keys = decode(keys[rows], key_scales[rows]) + centers[rows][:, :, None]
    decoded_values = decode(values[rows], value_scales[rows])
    return plain.attend(q, decoded_keys, decoded_values, visible[:, None, None], scale)


def _shape(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)


for name in ("decode_attend_int8", "decode_attend_int8_any"):
    LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    register_fake(f"ringkv::{name}", _shape, lib=LIBRARY)
