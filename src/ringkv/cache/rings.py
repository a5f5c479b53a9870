"""Rings: length and layout of each slot in the decode batch, shared by all layers.

B slots, n tokens a slot has seen. A slot's live entries are 0 .. live-1, a contiguous prefix, so decode attention needs
one length per slot and no mask. The entry to write is computed once a step for all layers and heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.kv import Layout


@dataclass(frozen=True)
class Rings:
    """`Layout` as tensors for B slots, all int32 [B]. A free slot has ring 0.

    Source: StreamingLLM (arXiv 2309.17453); as a ring in a static graph, SnapStream (arXiv 2511.03092).
    """

    length: Tensor  # n, tokens seen
    protected: Tensor  # entries never overwritten
    base: Tensor  # the position that takes the ring's first entry
    ring: Tensor  # entries in the ring

    @classmethod
    def empty(cls, slots: int, device: torch.device) -> "Rings":
        return cls(*(torch.zeros(slots, dtype=torch.int32, device=device) for _ in range(4)))

    def next_entry(self, ahead: int = 0) -> Tensor:
        """Return int32 [B], the entry of each slot's next token, or of the token `ahead` positions later.

        The entry depends on the position alone, so no cursor is stored.
        """
        beyond = self.length + ahead - self.base
        return self.protected + torch.where(beyond < 0, beyond, beyond % self.ring.clamp(min=1))

    def live_after_next(self, ahead: int = 0) -> Tensor:
        """Return int32 [B], the live entries once that token is written; 0 for a free slot."""
        live = torch.minimum(self.protected + self.length + ahead + 1 - self.base, self.protected + self.ring)
        return torch.where(self.ring > 0, live, 0)

    def advance(self, tokens: Tensor | int = 1) -> None:
        """Add `tokens`, int32 [B] or one number for all, to the length of every slot in use, in place."""
        self.length.add_((self.ring > 0).int() * tokens)

    def place(self, slot: int, layout: Layout) -> None:
        """Assign a slot to a compressed prompt, in place."""
        values = layout.prompt, layout.protected, layout.base, layout.ring
        for tensor, value in zip(vars(self).values(), values, strict=True):
            tensor[slot] = value

    def release(self, slot: int) -> None:
        """Free a slot, in place. It is neither read nor written until it is placed again."""
        for tensor in vars(self).values():
            tensor[slot] = 0
