"""Scales in float16: limited to its normal numbers, so that rounding changes a scale by at most 2**-11 of it."""

from torch import Tensor

from ringkv.kernels.constants import MAX_HALF, MIN_HALF


def half_scale(scales: Tensor) -> Tensor:
    """Round float32 scales [...] to float16."""
    return scales.clamp(MIN_HALF, MAX_HALF).half()


def half_offset(offsets: Tensor) -> Tensor:
    """Round float32 offsets [...], which may be negative, to float16."""
    return offsets.clamp(-MAX_HALF, MAX_HALF).half()
