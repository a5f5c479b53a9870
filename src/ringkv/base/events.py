"""Events: what the engine tells about a request, in order: Scored*, Token*, then Finished or Failed."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class KVUsage:
    """Proof of what the cache did for one request; entries are per layer and key-value head."""

    policy: str
    capacity: int  # entries it may hold
    kept: int  # prompt tokens kept at the end of prefill
    evicted: int  # tokens seen, prompt and output, that are no longer held
    ring_wraps: int  # how often decoding went round the ring
    bytes_held: int  # that its slot sets aside, all layers, whether the request fills them or not


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    kv: KVUsage
    cached_tokens: int = 0  # of the prompt, that needed no prefill
    drafted_tokens: int = 0  # guessed ahead
    accepted_tokens: int = 0  # of these, part of the completion


@dataclass(frozen=True)
class TokenLogprob:
    """Natural log-probabilities of the sampled token and of the top ones, before penalties, bias and temperature."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Scored:
    """The next of a prompt's tokens, without its first: what each was worth after all before it."""

    request_id: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Token:
    """is_last: its Finished is of the same step."""

    request_id: str
    token: int
    logprob: TokenLogprob | None = None
    is_last: bool = False


@dataclass(frozen=True)
class Finished:
    request_id: str
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True)
class Failed:
    """The request ended with an error; `kind` is the error's class name in `base.errors`."""

    request_id: str
    kind: str
    message: str
    param: str | None = None


Event = Scored | Token | Finished | Failed
