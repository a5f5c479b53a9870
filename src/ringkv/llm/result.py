"""What an LLM gives back: a Result for each prompt, Pieces while it streams."""

from collections.abc import Generator
from dataclasses import dataclass

from ringkv.base.events import FinishReason, TokenLogprob, Usage


@dataclass(frozen=True)
class Result:
    """One prompt's answer. `token_ids` are all sampled tokens, an end-of-sequence too; `text` ends before a stop.

    logprobs: one per token if SamplingParams.logprobs is set, else empty. prompt_logprobs: likewise, one for each token
    of the prompt except the first.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Piece:
    """What one token adds; its text may be empty. The last piece has no token but the result.

    usage: what the request holds by now.
    """

    text: str
    token: int | None = None
    result: Result | None = None
    usage: Usage | None = None


Pieces = Generator[Piece, None, None]
