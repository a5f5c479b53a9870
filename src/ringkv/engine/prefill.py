"""Prefill: runs chunks of prompts, and the rows of slots with them if they ride."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.base.engine import PrefillChunk
from ringkv.base.events import TokenLogprob
from ringkv.engine.batch import Batch
from ringkv.engine.lanes import Lanes
from ringkv.engine.load import ModelWeights
from ringkv.engine.passes import Passes
from ringkv.engine.programs import Programs


class Prefill:
    """Composes passes from the lanes' pieces and the batch's rows, and hands out what they give."""

    def __init__(self, lanes: Lanes, batch: Batch, passes: Passes, programs: Programs, weights: ModelWeights) -> None:
        self._lanes, self._batch, self._passes, self._programs, self._weights = lanes, batch, passes, programs, weights

    @property
    def unit(self) -> int:
        """A prompt may be cut into chunks at multiples of this; 0: of a whole chunk only."""
        return self._programs.unit if self._programs.packs else 0

    @property
    def packs(self) -> bool:
        return self._programs.packs

    @property
    def rides(self) -> bool:
        return self._programs.rides

    def run(self, work: Sequence[PrefillChunk], feed: bool) -> list[tuple[TokenLogprob, ...]]:
        """Run chunks of different prompts; see `base.engine.Engine.prefill`."""
        assert self.packs or len(work) == 1, "passes of this engine take one prompt"
        assert self.rides or not feed, "passes of this engine take no slots"
        hidden, fed = self._run(work, feed)
        found = [self._lanes.staged(chunk, rows) for chunk, rows in zip(work, hidden, strict=True)]
        ends = [(chunk.lane, rows[-1:]) for chunk, rows in zip(work, hidden, strict=True) if chunk.is_last]
        logits = self._logits([*(last for _, last in ends), *fed])
        for (lane, _), row in zip(ends, logits, strict=False):
            self._lanes.end(lane, row.clone())  # without the other rows
        if feed:
            self._batch.finish(logits[len(ends) :])
        return found

    def _run(self, work: Sequence[PrefillChunk], feed: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Return the hidden states of each chunk [T, hidden], and those of the slots [R, hidden] if they are fed."""
        if not self.packs:
            pieces = list(self._lanes.pieces(work[0]))
            return [torch.cat([self._passes.run([piece])[: len(piece.tokens)] for piece in pieces])], []
        fed = self._batch.fed() if feed else None
        sizes = [chunk.stop - chunk.start for chunk in work]
        hidden = self._passes.run([piece for chunk in work for piece in self._lanes.pieces(chunk)], fed)
        parts = hidden[: sum(sizes)].split(sizes)
        return list(parts), [hidden[sum(sizes) :][: len(fed.tokens)]] if fed else []

    def _logits(self, rows: Sequence[Tensor]) -> Tensor:
        """Return float32 logits [N, V] of hidden states [n, hidden] each."""
        shared = self._weights.shared.values()
        if not rows:
            return torch.empty(0)
        if not self.packs:
            return torch.cat([self._programs.head_of_one([row, *shared])[0] for row in rows])
        x = torch.cat(list(rows))
        return self._programs.head[len(x)]([x, *shared])[0]
