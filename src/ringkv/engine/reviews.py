"""Reviews: when slots are reviewed."""

from dataclasses import dataclass

from ringkv.base.kv import KVChoice, Layouts
from ringkv.cache.watching.review import Leaving
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
        for slot, one in self._reviewed.items():
            if any(layout.scored(one.seen) for layout in one.layouts):
                self._batch.review(slot, one.seen, one.choice, one.leaving)
            one.seen += 1
