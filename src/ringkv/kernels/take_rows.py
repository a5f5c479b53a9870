"""take_rows: the keys or values that a compressed prompt keeps, out of those that were staged.

L layers, P lanes of the staging, H key-value heads, S staged tokens, C entries of a slot, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import LIBRARY


def take_rows(staged: Tensor, lane: int, source: Tensor, out: Tensor) -> None:
    """Fill out [L, H, C, D]: row i of a layer and head is its staged token source[..., i], or 0 beyond source's.

    staged [L, P, H, S, D], contiguous; source int64 [L, H, n], n at most C. Out's rows of a head follow each other.
    """
    torch.ops.ringkv.take_rows(staged, lane, source, out)


def reference(staged: Tensor, lane: int, source: Tensor, out: Tensor) -> None:
    """The same in plain torch; whole rows, which is many times faster than number by number."""
    layers, lanes, heads, room, width = staged.shape
    first = torch.arange(layers * heads, device=source.device).view(layers, heads)
    first = (first // heads * lanes + lane) * heads + first % heads
    rows = staged.view(-1, width).index_select(0, (first[..., None] * room + source).flatten())
    out[:, :, : source.shape[2]] = rows.view(layers, heads, -1, width)
    out[:, :, source.shape[2] :] = 0


LIBRARY.impl("take_rows", reference, "CompositeExplicitAutograd")
