"""fed: the rows of slots in a pass or a decode step. R rows."""

from typing import NamedTuple

import torch
from torch import Tensor


class RowNumbers(NamedTuple):
    """Where rows write and read in the slots of one group of layers: int32 [R] each; slot as `SlotShare.places`."""

    slot: Tensor
    entry: Tensor
    live: Tensor  # 0 for a row that belongs to no slot

    def among(self, before: int, rows: int, no_slot: int) -> "RowNumbers":
        """Return numbers for a pass of so many rows, of which the first `before` are not the slots'.

        no_slot: the slot of rows that are not the slots'.
        """
        around = before, rows - before - len(self.slot)
        each = ((self.slot, no_slot), (self.entry, 0), (self.live, 0))
        return RowNumbers(*(torch.nn.functional.pad(one, around, value=value) for one, value in each))


class Fed(NamedTuple):
    """The rows of slots in one pass: their tokens and positions int64 [R], and their places by group of layers."""

    tokens: Tensor
    positions: Tensor
    at: tuple[RowNumbers, ...]
