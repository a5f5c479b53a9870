"""take_rows: the keys or values that a compressed prompt keeps, out of those that were staged.

L layers, P lanes of the staging, H key-value heads, S staged tokens, C entries of a slot, D head_dim.
"""

from itertools import product

import torch
from torch import Tensor

from ringkv.kernels.library import LIBRARY


def take_rows(staged: Tensor, lane: int, source: Tensor, out: Tensor) -> None:
    """Fill out [L, H, C, D]: row i of a layer and head is its staged token source[..., i], or 0 beyond source's.

    staged [L, P, H, S, D], contiguous; source int64 [L, H, n], n at most C. Out's rows of a head follow each other.
    """
    torch.ops.ringkv.take_rows(staged, lane, source, out)


def reference(staged: Tensor, lane: int, source: Tensor, out: Tensor) -> None:
    """The same in plain torch, without memory between the two: whole rows of one head after the other."""
    layers, heads, count = source.shape
    for layer, head in product(range(layers), range(heads)):
        rows = out[layer, head, :count]
        torch.index_select(staged[layer, lane, head], 0, source[layer, head], out=rows)
    out[:, :, count:] = 0


LIBRARY.impl("take_rows", reference, "CompositeExplicitAutograd")
