"""copy_to_all: the entries of a slot that one rank has, on every rank.

L layers of a group, H key-value heads, C entries of a slot, D elements of a vector.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.base.ranks import Exchange
from ringkv.cache.body import Body, CacheRow
from ringkv.kernels.collective import all_reduce


def copy_to_all(own: CacheRow | None, bodies: Sequence[Body], exchange: Exchange) -> CacheRow:
    """Return a copy of a slot. own: its row in `bodies`, on the rank that has it; None on the others."""
    copies = tuple(_copy(body, None if own is None else own.at, exchange) for body in bodies)
    return CacheRow(copies, 0)


def _copy(body: Body, row: int | None, exchange: Exchange) -> Body:
    assert not body.beside, "the slots of several ranks are plain"
    return Body(body.group, tuple(_summed(plane, row, exchange)[:, None] for plane in body.planes))


def _summed(plane: Tensor, row: int | None, exchange: Exchange) -> Tensor:
    """Return [L, H, C, D] of a row of plane [L, R, H, C, D], layer by layer: the sum with the zeros of other ranks."""
    nothing = plane.new_zeros(plane.shape[2:])
    layers = (nothing if row is None else layer[row] for layer in plane)
    return torch.stack([all_reduce(layer, exchange).to(plane.dtype) for layer in layers])
