"""take_rows: gather the keys or values that a compressed prompt keeps from its staged ones.

L layers, P lanes of the staging, H key-value heads, S staged tokens, C entries of a slot, D head_dim.
"""

from itertools import product

import torch
from torch import Tensor

from ringkv.kernels.library import register


def take_rows(staged: Tensor, lane: int, source: Tensor, out: Tensor) -> None:
    """Fill out [L, H, C, D]: row i of a layer and head is its staged token source[..., i], or 0 for i >= n.

    staged [L, P, H, S, D], contiguous; source int64 [L, H, n], n at most C. The rows of a head are contiguous in out.
    """
    torch.ops.ringkv.take_rows(staged, lane, source, out)


def reference(staged: Tensor, lane: int, source: Tensor, out: Tensor) -> None:
    """Implement `take_rows` in plain torch, one head at a time, without temporary memory."""
    layers, heads, count = source.shape
    for layer, head in product(range(layers), range(heads)):
        rows = out[layer, head, :count]
        torch.index_select(staged[layer, lane, head], 0, source[layer, head], out=rows)
    out[:, :, count:] = 0


register("take_rows", reference)
