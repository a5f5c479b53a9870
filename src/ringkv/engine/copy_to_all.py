"""copy_to_all: the entries of a slot that one rank has, on every rank.

L layers of a group, H key-value heads, C entries of a slot, D elements of a vector.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ringkv.base.ranks import Exchange
from ringkv.cache.body import Body
from ringkv.cache.rows import CacheRow
from ringkv.kernels.collective import all_reduce
from ringkv.kernels.slots import mapped


def copy_to_all(own: CacheRow | None, bodies: Sequence[Body], exchange: Exchange) -> CacheRow:
    """Return a copy of a slot. own: its row in `bodies`, on the rank that has it; None on the others."""
    copies = tuple(_copy(body, None if own is None else own.at, exchange) for body in bodies)
    return CacheRow(copies, 0)


def _copy(body: Body, row: int | None, exchange: Exchange) -> Body:
    return replace(body, slots=mapped(body.slots, lambda tensor: _summed(tensor, row, exchange)[:, None]))


def _summed(tensor: Tensor, row: int | None, exchange: Exchange) -> Tensor:
    """Return [L, ...] of a row of a tensor [L, R, ...], layer by layer: the sum with the zeros of other ranks.

    Sums are in float32, which has every value of the formats of slots.
    """
    nothing = tensor.new_zeros(tensor.shape[2:])
    layers = (nothing if row is None else layer[row] for layer in tensor)
    return torch.stack([all_reduce(layer.float(), exchange).to(tensor.dtype) for layer in layers])
