"""LaneAnswers: requests that keep every token in their lane, because no slot holds as many.

Each token of such an answer extends its lane. Its slot has what sampling needs, and one entry, which is not read.
"""

from torch import Tensor

from ringkv.base.request import Request
from ringkv.cache.layouts import sliding
from ringkv.engine.batch import Batch
from ringkv.engine.passes import PromptPiece
from ringkv.engine.prompt_views import Lane


class LaneAnswers:
    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._next: dict[int, PromptPiece] = {}  # by slot, what extends the lane, still without its token

    def __bool__(self) -> bool:
        return bool(self._next)

    def place(self, slot: int, number: int, lane: Lane, request: Request) -> None:
        """Give a slot to a request whose prompt stays in this lane."""
        assert lane.logits is not None, "the lane's prompt is not prefilled yet"
        self._batch.place(slot, (sliding(1, len(lane.tokens)),) * len(self._batch.bodies), lane.logits, request)
        self._next[slot] = PromptPiece((), number, lane.entries, lane.entries + 1, lane.gap)

    def release(self, slot: int) -> None:
        self._next.pop(slot, None)

    def pieces(self) -> list[PromptPiece]:
        """Return what feeds each of them the token that was sampled last. `finish` must follow."""
        tokens = self._batch.tokens.clamp(min=0).tolist()
        return [piece._replace(tokens=(tokens[slot],)) for slot, piece in self._next.items()]

    def finish(self, logits: Tensor) -> None:
        """Take the logits float32 [N, V] of these pieces, after the slots were fed."""
        for slot, row in zip(list(self._next), logits, strict=True):
            self._batch.logits[slot] = row
            piece = self._next[slot]
            self._next[slot] = piece._replace(start=piece.start + 1, length=piece.length + 1)
