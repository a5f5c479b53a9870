"""Result: a finished answer. StreamPiece: one token of a streamed answer."""

from collections.abc import Generator
from dataclasses import dataclass

from ringkv.base.events import FinishReason, TokenLogprob, Usage


@dataclass(frozen=True)
class Result:
    """One prompt's answer.

    text: ends before a stop string. token_ids: all sampled tokens, including an end-of-sequence token.
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
class StreamPiece:
    """The text that one token adds, which may be empty. The last piece has no token; it has the result.

    usage: the request's usage so far.
    """

    text: str
    token: int | None = None
    result: Result | None = None
    usage: Usage | None = None


Stream = Generator[StreamPiece, None, None]
