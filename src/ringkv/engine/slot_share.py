"""SlotShare: which slots a rank has, and which rows of a decode step are theirs.

B slots, R rows of a step. If ranks divide the slots, slot s is on rank s % ranks, and row i of a step is a slot of rank
i % ranks, so that all ranks attend for as many rows. Every rank has the tokens, lengths, logits and sampling state of
all slots, but entries of its own only. Lanes are on every rank, so a slot's prompt is staged where its entries go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ringkv.base.ranks import Exchange, Rank
from ringkv.cache.body import Body
from ringkv.cache.rows import CacheRow
from ringkv.kernels.collective import all_reduce
from ringkv.kernels.latent_slots import OTHER_RANK
from ringkv.kernels.slots import mapped


@dataclass(frozen=True)
class SlotShare:
    """rank: of those that divide the slots; the only one if all slots are here."""

    rank: Rank

    @property
    def ranks(self) -> int:
        return self.rank.count

    def place(self, slot: int) -> int | None:
        """Return a slot's row in this rank's bodies, or None if another rank has it."""
        return slot // self.ranks if slot % self.ranks == self.rank.index else None

    def places(self, rows: Tensor) -> Tensor:
        """Return int32 [R]: `place` of the slots int64 [R] of a step's rows, or OTHER_RANK."""
        if self.ranks == 1:
            return rows.int()
        return torch.where(rows % self.ranks == self.rank.index, rows // self.ranks, OTHER_RANK).int()

    def own(self, rows: Tensor) -> Tensor:
        """Return this rank's part of a tensor [R, ...] of a step's rows."""
        return rows[self.rank.index :: self.ranks]

    def own_places(self, rows: Tensor) -> Tensor:
        """Return the rows in this rank's bodies of its part of slots int64 [R]."""
        return self.own(rows) // self.ranks

    def needed(self, slots: Sequence[int]) -> int:
        """Return the rows of a step with these slots: equally many of each rank."""
        return max(map(len, self._by_rank(slots))) * self.ranks

    def in_turn(self, slots: Sequence[int], size: int) -> list[int]:
        """Return the slots of `size` rows: the first of each rank, a slot of each in turn."""
        each = size // self.ranks
        return [slot for row in zip(*(of_rank[:each] for of_rank in self._by_rank(slots)), strict=True) for slot in row]

    def _by_rank(self, slots: Sequence[int]) -> list[list[int]]:
        return [[slot for slot in slots if slot % self.ranks == rank] for rank in range(self.ranks)]

    def on_every_rank(self, slot: CacheRow | None, bodies: Sequence[Body], exchange: Exchange) -> CacheRow:
        """Return a slot on every rank: a copy, if ranks divide the slots. slot: on the rank that has it."""
        if self.ranks == 1:
            assert slot is not None
            return slot
        row = None if slot is None else slot.row
        copies = (mapped(body.slots, lambda tensor: _summed(tensor, row, exchange)[:, None]) for body in bodies)
        return CacheRow(tuple(replace(body, slots=copy) for body, copy in zip(bodies, copies, strict=True)), 0)


def _summed(tensor: Tensor, row: int | None, exchange: Exchange) -> Tensor:
    """Return [L, ...] of a row of a tensor [L, R, ...], layer by layer: the sum with the zeros of other ranks.

    Sums are in float32, which has every value of the formats of slots.
    """
    nothing = tensor.new_zeros(tensor.shape[2:])
    layers = (nothing if row is None else layer[row] for layer in tensor)
    return torch.stack([all_reduce(layer.float(), exchange).to(tensor.dtype) for layer in layers])
