"""by_head: a product of each head's elements with a matrix of the head's own, as one operator.

N rows, H heads, K elements of a head.
"""

import torch
from torch import Tensor

from ringkv.kernels.formats import unpack
from ringkv.kernels.library import is_native, register
from ringkv.kernels.packing import PANEL_N


def by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Return [N, H, out] from x [N, H, K], whose elements of a head are contiguous.

    weight: the matrices of all heads, each [out, K] or packed as for `linear`, stacked along the first dimension. Sums
    are float32.
    """
    if weight.dim() == 2:
        return reference(x, weight)
    out: Tensor = torch.ops.ringkv.by_head(x, weight)
    return out


def by_head_among(x: Tensor, weight: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return by_head of some rows of a call, [n, H, out] of x [n, H, K], with the bits that they have in it.

    rows: int64 [n], their places among the call's `count` rows.
    """
    if weight.dim() != 2 and is_native("by_head"):
        out: Tensor = torch.ops.ringkv.by_head(x, weight, count)
        return out
    whole = x.new_zeros(count, *x.shape[1:])  # libraries round a row differently in a product of another size
    whole[rows] = x
    return by_head(whole, weight)[rows]


def outputs(weight: Tensor, heads: int) -> int:
    """Return the number of outputs of each head's matrix."""
    return weight.shape[0] * (1 if weight.dim() == 2 else PANEL_N) // heads


def reference(x: Tensor, weight: Tensor, among: int | None = None) -> Tensor:
    """Implement `by_head` in plain torch.

    among: rows of the call that x is a part of, which decides how the C++ operator multiplies int4 weights.
    """
    each = unpack(weight).unflatten(0, (x.shape[1], -1))
    product = torch.matmul(x.transpose(0, 1).to(each.dtype), each.transpose(1, 2))
    return product.transpose(0, 1).to(x.dtype).contiguous()


def _shape(x: Tensor, weight: Tensor, among: int | None = None) -> Tensor:
    return x.new_empty(*x.shape[:2], outputs(weight, x.shape[1]))


register("by_head", reference, _shape)
