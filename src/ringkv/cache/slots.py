"""Slots: what every layer of the decode batch shares about its cache.

B slots, n tokens a slot has seen. A slot's live entries are 0 .. live-1, a contiguous prefix: decode attention needs
one length per slot and no mask, and the entry to write is computed once a step for all layers and heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.kv import Layout


@dataclass(frozen=True)
class Slots:
    """The tensor twin of `Layout` for B slots, all int32 [B]. A free slot has ring 0.

    Source: StreamingLLM (arXiv 2309.17453); as a ring in a static graph, SnapStream (arXiv 2511.03092).
    """

    length: Tensor  # n, tokens seen
    protected: Tensor  # entries never overwritten
    base: Tensor  # the position that takes the ring's first entry
    ring: Tensor  # entries in the ring

    @classmethod
    def empty(cls, slots: int, device: torch.device) -> "Slots":
        return cls(*(torch.zeros(slots, dtype=torch.int32, device=device) for _ in range(4)))

    def next_entry(self, ahead: int = 0) -> Tensor:
        """int32 [B], the entry that the next token of each slot takes, or the one so many tokens later.

        A function of position alone: no cursor to keep.
        """
        beyond = self.length + ahead - self.base
        return self.protected + torch.where(beyond < 0, beyond, beyond % self.ring.clamp(min=1))

    def live_after_next(self, ahead: int = 0) -> Tensor:
        """int32 [B], entries that hold a token once that token is written; 0 for a free slot."""
        seen = torch.minimum(self.protected + self.length + ahead + 1 - self.base, self.protected + self.ring)
        return torch.where(self.ring > 0, seen, 0)

    def advance(self, tokens: Tensor | int = 1) -> None:
        """Count more tokens, int32 [B] or as many everywhere, in every slot in use; changes `length` in place."""
        self.length.add_((self.ring > 0).int() * tokens)

    def place(self, slot: int, layout: Layout) -> None:
        """Give a slot to a compressed prompt; in place."""
        for plane, number in zip(
            self._planes(), (layout.prompt, layout.protected, layout.base, layout.ring), strict=True
        ):
            plane[slot] = number

    def release(self, slot: int) -> None:
        """Free a slot; in place. Nothing of it is read or written until it is placed again."""
        for plane in self._planes():
            plane[slot] = 0

    def _planes(self) -> tuple[Tensor, ...]:
        return self.length, self.protected, self.base, self.ring
