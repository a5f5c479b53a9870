"""SampledStep: what a step sampled for all slots, still on the device.

B slots, TOP top tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ringkv.base.engine import Sampled
from ringkv.base.events import TokenLogprob


@dataclass(frozen=True)
class SampledStep:
    """A sampling graph's outputs, still on the device."""

    tokens: Tensor  # int64 [B]
    wanted: Sequence[int | None]  # how many top tokens each slot reports
    scores: tuple[Tensor, ...]  # logprob [B], ids [B, TOP], logprobs [B, TOP]; none below the tier ADJUSTED

    def read(self) -> Sequence[Sampled]:
        """Waits for the device; one copy of the tokens, and one of the scores if there are any."""
        tokens = self.tokens.tolist()
        scores = zip(*(t.tolist() for t in self.scores), strict=True) if self.scores else [None] * len(tokens)
        return [_sampled(*one) for one in zip(tokens, self.wanted, scores, strict=True)]


def _sampled(token: int, wanted: int | None, scores: tuple[float, list[int], list[float]] | None) -> Sampled:
    if token < 0:
        return Sampled(None, None)
    if wanted is None or scores is None:
        return Sampled(token, None)
    logprob, ids, top = scores
    return Sampled(token, TokenLogprob(logprob, tuple(zip(ids[:wanted], top[:wanted], strict=True))))
