"""Reviews: slots whose policy reviews them while they decode, and when."""

from dataclasses import dataclass

from torch import Tensor

from ringkv.base.kv import KVChoice, Layouts
from ringkv.cache.watching.review import Leaving, review
from ringkv.engine.batch import Batch
from ringkv.engine.prompt_views import reductions


@dataclass
class _Reviewed:
    """choice: of the slot's request. seen: tokens that the slot has seen. leaving: of each group of layers."""

    choice: KVChoice
    layouts: Layouts
    seen: int
    leaving: tuple[Leaving, ...]


class Reviews:
    """Counts the tokens of slots, so that a step knows without asking the device which of them to review first."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._reductions = batch, reductions(batch.decoder)
        self._reviewed: dict[int, _Reviewed] = {}

    def enter(self, slot: int, choice: KVChoice, layouts: Layouts) -> None:
        """Note the request in a slot that was filled."""
        if choice.review_interval:
            self._reviewed[slot] = _Reviewed(choice, layouts, layouts[0].prompt, tuple({} for _ in layouts))

    def leave(self, slot: int) -> None:
        """Forget a slot."""
        self._reviewed.pop(slot, None)

    def run(self) -> None:
        """Review the layers of slots whose turn it is. A step that feeds every running slot must follow."""
        for slot, reviewed in self._reviewed.items():
            seen, row = reviewed.seen, self._batch.share.place(slot)
            assert row is not None, "one rank has all slots"
            of_groups = self._batch.rings, self._batch.bodies, reviewed.layouts, reviewed.leaving, self._reductions
            for rings, body, layout, leaving, reduction in zip(*of_groups, strict=True):
                if layout.scored(seen):
                    review(body, row, layout, seen, reviewed.choice, leaving, reduction)
                    if layout.is_full(seen):
                        rings.place(slot, layout.reviewed(seen))
            reviewed.seen += 1

    def count(self, kept: Tensor) -> None:
        """Count the drafts that slots have kept, int64 [B]. No layer's turn may have come between them."""
        for slot, reviewed in self._reviewed.items():
            tokens = int(kept[slot])
            until = (layout.until_scored(reviewed.seen) for layout in reviewed.layouts if layout.review)
            assert tokens <= min(until), "a layer's turn came before the last draft"
            reviewed.seen += tokens
