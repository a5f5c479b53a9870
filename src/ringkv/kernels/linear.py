"""linear and gated: matrix products with what surrounds them in a decoder, as one operator each.

M rows. With few rows a product takes the time to read its weight; whatever else is done must not add passes over
memory, barriers or calls. So the normalisation before, and the bias, gate or residual after, are part of it.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.kernels.formats import unpack, unpack_gated
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.norm import rms_norm
from ringkv.kernels.packing import WIDE

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


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
    """RMS-normalised (if `norm` [in] is given) x [M, in], times weight transposed, plus bias [out], plus residual.

    The weight is [out, in], or packed (`formats.FORMATS`). Sums are float32; the result [M, out] is of `dtype`, x's own
    if none is given. `offset`: that of the norm, which is then an operator of its own.
    """
    dtype = dtype or x.dtype
    if norm is not None and offset:
        x, norm = rms_norm(x, norm, eps, offset), None
    if weight.dim() == 2:
        return reference(x, weight, bias, norm, eps, residual, dtype)
    out: Tensor = torch.ops.ringkv.linear(x, weight, bias, norm, eps, residual, dtype)
    return out


def gated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor,
    eps: float,
    activation: str = "silu",
    offset: float = 0.0,
) -> Tensor:
    """activation(gate) * up of normalised x [M, in].

    The weight is gate and up stacked, [2 * wide, in], or `pack_gated`.
    One operator serves silu and a norm without `offset`; anything else is composed of `linear` and torch's own.
    """
    if offset or activation != "silu":
        return _composed(x, weight, bias, norm, eps, activation, offset)
    if weight.dim() == 2:
        return gated_reference(x, weight, bias, norm, eps)
    out: Tensor = torch.ops.ringkv.gated(x, weight, bias, norm, eps)
    return out


def _composed(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor, eps: float, activation: str, offset: float
) -> Tensor:
    product = linear(x, weight, None, norm, eps, offset=offset)
    gate, up = product.chunk(2, dim=-1) if weight.dim() == 2 else _halves(product)
    if bias is not None:
        of_gate, of_up = bias.chunk(2)
        gate, up = gate + of_gate, up + of_up
    return ACTIVATIONS[activation](gate) * up


def _halves(product: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up of a product with a `pack_gated` weight, whose strips alternate."""
    gate, up = product.unflatten(-1, (-1, 2, WIDE)).unbind(-2)
    return gate.flatten(-2), up.flatten(-2)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    residual: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The same in plain torch."""
    product = _product(x if norm is None else rms_norm(x, norm, eps), unpack(weight), bias)
    return (product if residual is None else product + residual).to(dtype)


def gated_reference(x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor, eps: float) -> Tensor:
    """The same in plain torch."""
    gate, up = _product(rms_norm(x, norm, eps), unpack_gated(weight), bias).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In the weight's type: x's own, or float32 where that holds more of a scaled weight."""
    return F.linear(x.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


def _shape(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    residual: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return x.new_empty(len(x), weight.shape[0] * WIDE, dtype=dtype)


def _gated_shape(x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor, eps: float) -> Tensor:
    return x.new_empty(len(x), weight.shape[0] * WIDE // 2)


LIBRARY.impl("linear", reference, "CompositeExplicitAutograd")
LIBRARY.impl("linear", _shape, "Meta")
LIBRARY.impl("gated", gated_reference, "CompositeExplicitAutograd")
LIBRARY.impl("gated", _gated_shape, "Meta")
