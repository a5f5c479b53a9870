"""Slots in the format zipcache with given tokens; for tests."""

import torch
from torch import Tensor

from ringkv.base.zip_sizes import ZipSizes
from ringkv.kernels.zip_slots import ZipSlots, allocate
from ringkv.kernels.zip_tokens import fill


def made(slots: int, heads: int, width: int, capacity: int, dtype: torch.dtype = torch.float32) -> ZipSlots:
    """Return empty slots; nothing reads what they hold then, so it is NaN if it can be."""

    def new(shape: tuple[int, ...], dtype: torch.dtype = dtype) -> Tensor:
        return torch.full(shape, float("nan") if dtype.is_floating_point else 77, dtype=dtype)

    found = allocate((slots, heads), width, ZipSizes.of(capacity), new)
    found.counts.zero_()
    return found


def tokens(heads: int, n: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return keys and values [H, n, D]."""
    torch.manual_seed(seed)
    return torch.randn(heads, n, width) + 3 * torch.randn(width), torch.randn(heads, n, width)


def filled(slots: ZipSlots, slot: int, n: int, fixed: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Fill a slot with n tokens; return their keys, values and saliency."""
    heads, width = slots.plain_keys.shape[1], slots.plain_keys.shape[3]
    keys, values = (x.to(slots.plain_keys.dtype) for x in tokens(heads, n, width, seed))
    saliency = torch.rand(heads, n)
    fill(slots.of(slot), keys, values, fixed, saliency)
    return keys, values, saliency
