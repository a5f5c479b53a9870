"""linear and gated: matrix products fused with the operations around them in a decoder, one operator each.

M rows. With few rows a product is bound by reading its weight, so nothing else may add passes over memory, barriers or
calls. So the RMSNorm before it, and the bias, gate or residual after it, are part of the operator.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.kernels.formats import multiplied, unpack, unpack_gated
from ringkv.kernels.library import register
from ringkv.kernels.norm import rms_norm
from ringkv.kernels.packing import PANEL_N

CLAMP, STEEPNESS = 7.0, 1.702  # of gpt-oss' clamped SwiGLU (arXiv 2508.10925)


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate = gate.clamp(max=CLAMP)
    return gate * torch.sigmoid(STEEPNESS * gate) * (up.clamp(-CLAMP, CLAMP) + 1)


ACTIVATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "clamped_swiglu": _clamped_swiglu,
}
"""How gate and up become one."""


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
    offset: float = 0.0,
) -> Tensor:
    """Return x [M, in], RMS-normalised if `norm` [in] is given, times the transposed weight, plus bias and residual.

    The weight is [out, in], or packed (`formats.FORMATS`). Sums are float32. The result [M, out] has `dtype`, x's
    by default. `offset` is added to `norm` (Gemma's is 1).
    """
    dtype = dtype or x.dtype
    if weight.dim() == 2:
        return reference(x, weight, bias, norm, eps, residual, dtype, offset)
    out: Tensor = torch.ops.ringkv.linear(x, weight, bias, norm, eps, residual, dtype, offset)
    return out


def gated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    activation: str = "silu",
    offset: float = 0.0,
) -> Tensor:
    """Return activation(gate) * up of x [M, in], RMS-normalised if `norm` is given; `offset` is added to `norm`.

    clamped_swiglu: gates are clamped to at most 7 and ups to -7 .. 7; then ups grow by 1. The weight is gate and up
    stacked, [2 * out, in], or packed by `pack_gated`.
    """
    if weight.dim() == 2:
        return gated_reference(x, weight, bias, norm, eps, activation, offset)
    out: Tensor = torch.ops.ringkv.gated(x, weight, bias, norm, eps, activation, offset)
    return out


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    residual: Tensor | None,
    dtype: torch.dtype,
    offset: float = 0.0,
) -> Tensor:
    """Implement `linear` in plain torch."""
    normed, unpacked = x if norm is None else rms_norm(x, norm, eps, offset), unpack(weight)
    rows = multiplied(normed, weight)
    if unpacked.is_cuda and unpacked.itemsize == 2 and dtype == torch.float32:
        # A product in the weight's dtype would round the sums. torch has another product on CUDA only.
        product = torch.mm(rows.to(unpacked.dtype), unpacked.t(), out_dtype=torch.float32)
        product = product if bias is None else product + bias
    else:
        product = _product(rows, unpacked, bias)
    return (product if residual is None else product + residual).to(dtype)


def gated_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    activation: str = "silu",
    offset: float = 0.0,
) -> Tensor:
    """Implement `gated` in plain torch."""
    normed = x if norm is None else rms_norm(x, norm, eps, offset)
    gate, up = _product(multiplied(normed, weight), unpack_gated(weight), bias).chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate, up).to(x.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply in the weight's dtype: x's, or float32 for an unpacked quantised weight."""
    return F.linear(x.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


def _shape(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    *_, dtype, _ = others
    return x.new_empty(x.shape[0], weight.shape[0] * PANEL_N, dtype=dtype)


def _gated_shape(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0] * PANEL_N // 2)


register("linear", reference, _shape)
register("gated", gated_reference, _gated_shape)
