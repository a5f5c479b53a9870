"""Reviews: when slots whose policy watches decoding are reviewed."""

from dataclasses import dataclass

from ringkv.base.kv import WATCHING, KVChoice, Layouts
from ringkv.engine.batch import Batch


@dataclass
class _Watched:
    """choice: of the slot's request. seen: tokens that the slot has seen."""

    choice: KVChoice
    layouts: Layouts
    seen: int


class Reviews:
    """Counts the tokens of slots, so that a step knows without asking the device which of them to review first."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._watched: dict[int, _Watched] = {}

    def enter(self, slot: int, choice: KVChoice, layouts: Layouts) -> None:
        """Note the request in a slot that was filled."""
        if choice.policy in WATCHING:
            self._watched[slot] = _Watched(choice, layouts, layouts[0].prompt)

    def leave(self, slot: int) -> None:
        """Forget a slot."""
        self._watched.pop(slot, None)

    def run(self) -> None:
        """Review the slots that are due. A step that feeds every running slot one token must follow."""
        for slot, one in self._watched.items():
            if any(layout.is_due(one.seen) for layout in one.layouts):
                self._batch.review(slot, one.seen, one.choice)
            one.seen += 1
