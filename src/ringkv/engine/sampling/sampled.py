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
    scores: tuple[Tensor, ...]  # logprob [B], ids [B, TOP], logprobs [B, TOP]; none if no slot reports them
    more: tuple[Tensor, ...] = ()  # tokens sampled after the drafts [B, N], and how many of these count [B]

    def read(self) -> Sequence[Run]:
        """Wait for the device, and copy the tokens, and the scores if a slot reports them."""
        first = [_sampled(token) for token in self.tokens.tolist()]
        if self.scores and any(wanted is not None for wanted in self.wanted):
            first = self._scored(first)
        if not self.more:
            return [(sampled,) for sampled in first]
        then, kept = (tensor.tolist() for tensor in self.more)
        rows = zip(first, then, kept, strict=True)
        return [(sampled, *map(_sampled, tokens[:count])) for sampled, tokens, count in rows]

    def _scored(self, first: Sequence[Sampled]) -> list[Sampled]:
        """Add the log-probabilities that slots report."""
        scores = zip(*(score.tolist() for score in self.scores), strict=True)
        return [
            sampled if wanted is None or sampled.token is None else sampled._replace(logprob=_logprob(wanted, *score))
            for sampled, wanted, score in zip(first, self.wanted, scores, strict=True)
        ]


def _sampled(token: int) -> Sampled:
    return Sampled(None if token < 0 else token, None)


def _logprob(wanted: int, logprob: float, ids: Sequence[int], top: Sequence[float]) -> TokenLogprob:
    return TokenLogprob(logprob, tuple(zip(ids[:wanted], top[:wanted], strict=True)))
