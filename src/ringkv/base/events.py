"""Events that the engine emits for a request, in order: Scored*, Token*, then Finished or Failed."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class PageUsage:
    """Pages of one request's slot, per layer and key-value head. `recalled` is a mean over these."""

    held: int  # pages that hold its tokens
    resident: int  # of them, those that stay where steps read them: not in a GPU's host, and not in files
    step: int  # pages that a step reads at most
    read: int  # pages that all steps of the answer have read
    skipped: int  # pages that they have not
    recalled: int = 0  # pages that they copied from a GPU's host, or that were not in memory but in a file


@dataclass(frozen=True)
class HeadUsage:
    """Entries that key-value heads of one request may hold, over all layers."""

    fewest: int
    most: int


@dataclass(frozen=True)
class KVUsage:
    """Cache statistics of one request. Entries are per layer and key-value head.

    pages: None unless steps read some pages. heads: None if all heads hold as many entries.
    """

    policy: str
    capacity: int  # entries it may hold
    kept: int  # prompt tokens kept at the end of prefill
    evicted: int  # tokens seen, prompt and output, that are no longer in the cache
    ring_wraps: int  # how often decoding wrapped the ring
    bytes_held: int  # of memory, allocated for its slot in all layers, filled or not
    pages: PageUsage | None = None
    heads: HeadUsage | None = None

    @property
    def counts(self) -> dict[str, Any]:
        """The statistics as a dictionary, without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    kv: KVUsage
    cached_tokens: int = 0  # prompt tokens that needed no prefill
    drafted_tokens: int = 0  # tokens guessed ahead
    accepted_tokens: int = 0  # drafted tokens that became part of the completion
    queue_seconds: float = field(default=0.0, compare=False)  # from its submission until its prefill, or its slot
    prefill_seconds: float = field(default=0.0, compare=False)  # of its prompt, with the decode steps in between


@dataclass(frozen=True)
class TokenLogprob:
    """Natural log-probabilities of the sampled token and of the top ones, before penalties, bias and temperature."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of the next prompt tokens. The first token of a prompt has none."""

    request_id: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Token:
    """One output token. is_last: Finished follows in the same step."""

    request_id: str
    token: int
    logprob: TokenLogprob | None = None
    is_last: bool = False


@dataclass(frozen=True)
class Finished:
    request_id: str
    reason: FinishReason
    usage: Usage

    def with_recalled(self, pages: int) -> "Finished":
        kv = self.usage.kv
        if kv.pages is None:
            return self
        return replace(self, usage=replace(self.usage, kv=replace(kv, pages=replace(kv.pages, recalled=pages))))


@dataclass(frozen=True)
class Failed:
    """The request ended with an error; `kind` is the error's class name in `base.errors`."""

    request_id: str
    kind: str
    message: str
    param: str | None = None


Event = Scored | Token | Finished | Failed
