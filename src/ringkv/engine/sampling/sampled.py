"""SampledStep: what a step sampled for all slots, still on the device.

B slots, N drafts per slot, TOP top tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ringkv.base.engine import Run, Sampled
from ringkv.base.events import TokenLogprob


@dataclass(frozen=True)
class SampledStep:
    """A sampling graph's outputs, still on the device."""

    tokens: Tensor  # int64 [B]
    wanted: Sequence[int | None]  # how many top tokens each slot reports
    scores: tuple[Tensor, ...]  # logprob [B], ids [B, TOP], logprobs [B, TOP]; none below the tier ADJUSTED
    more: tuple[Tensor, ...] = ()  # tokens sampled after the drafts [B, N], and how many of these count [B]

    def read(self) -> Sequence[Run]:
        """Wait for the device, and copy the tokens, and the scores if there are any."""
        tokens = self.tokens.tolist()
        scores = zip(*(t.tolist() for t in self.scores), strict=True) if self.scores else [None] * len(tokens)
        first = [_sampled(*one) for one in zip(tokens, self.wanted, scores, strict=True)]
        if not self.more:
            return [(one,) for one in first]
        then, kept = (t.tolist() for t in self.more)
        return [
            (one, *(Sampled(None if token < 0 else token, None) for token in tokens[:count]))
            for one, tokens, count in zip(first, then, kept, strict=True)
        ]


def _sampled(token: int, wanted: int | None, scores: tuple[float, list[int], list[float]] | None) -> Sampled:
    if token < 0:
        return Sampled(None, None)
    if wanted is None or scores is None:
        return Sampled(token, None)
    logprob, ids, top = scores
    return Sampled(token, TokenLogprob(logprob, tuple(zip(ids[:wanted], top[:wanted], strict=True))))
