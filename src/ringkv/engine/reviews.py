"""Reviews: slots whose policy reviews them while they decode, and when."""

from dataclasses import dataclass

from ringkv.base.kv import KVChoice, Layouts
from ringkv.cache.watching.review import Leaving, review
from ringkv.engine.batch import Batch


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
        self._batch = batch
        self._reviewed: dict[int, _Reviewed] = {}

    def enter(self, slot: int, choice: KVChoice, layouts: Layouts) -> None:
        """Note the request in a slot that was filled."""
        if choice.review_interval:
            self._reviewed[slot] = _Reviewed(choice, layouts, layouts[0].prompt, tuple({} for _ in layouts))

    def leave(self, slot: int) -> None:
        """Forget a slot."""
        self._reviewed.pop(slot, None)

    def run(self) -> None:
        """Review the layers of slots whose turn it is. A step that feeds every running slot one token must follow."""
        for slot, reviewed in self._reviewed.items():
            seen, row = reviewed.seen, self._batch.share.place(slot)
            assert row is not None, "one rank has all slots"
            each = zip(self._batch.rings, self._batch.bodies, reviewed.layouts, reviewed.leaving, strict=True)
            for rings, body, layout, leaving in each:
                if layout.scored(seen):
                    review(body, row, layout, seen, reviewed.choice, leaving)
                    if layout.is_full(seen):
                        rings.place(slot, layout.reviewed(seen))
            reviewed.seen += 1
