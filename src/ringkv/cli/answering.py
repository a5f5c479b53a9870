"""Show a streamed answer as it arrives, and time it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ringkv.base.engine import Limits
from ringkv.base.events import Usage
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.llm.result import Result, StreamPiece


@dataclass(frozen=True)
class TimedResult:
    """A result with its times. first_token_s: request to first token. decode_s: first token to last."""

    result: "Result"
    first_token_s: float
    decode_s: float

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.result.usage.prompt_tokens / self.first_token_s

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first; None if there is only one token."""
        later = self.result.usage.completion_tokens - 1
        return later / self.decode_s if later and self.decode_s else None

    def line(self) -> str:
        """Cache usage, time to first token and rates, in one line."""
        rate = f", decode {self.decode_rate:.1f} tok/s" if self.decode_rate else ""
        return (
            f"{cache_line(self.result.usage)} | first token {self.first_token_s:.1f} s, "
            f"prefill {self.prefill_rate:,.0f} tok/s{rate}"
        )

    def as_json(self) -> dict[str, Any]:
        timing = {
            "first_token_s": self.first_token_s,
            "prefill_tokens_per_s": self.prefill_rate,
            "decode_tokens_per_s": self.decode_rate,
        }
        fields = asdict(self.result) | {"timing": timing}
        fields["usage"]["kv"] = self.result.usage.kv.counts
        return fields


def follow(pieces: Iterable["StreamPiece"], show: Callable[["StreamPiece"], None]) -> TimedResult:
    """Read `pieces` to the end and pass each to `show`. Raises the engine's errors.

    A caller that stops early closes the iterator, which cancels the request.
    """
    started = time.perf_counter()
    first = last = 0.0
    for piece in pieces:
        if piece.token is not None:
            last = time.perf_counter() - started
            first = first or last
        show(piece)
    assert piece.result is not None, "an answer ends with its result"
    return TimedResult(piece.result, first or last, last - first)


def cut_short(result: "Result", requested: int, limits: Limits) -> str | None:
    """Return why the answer has fewer tokens than requested; None if it was not truncated."""
    usage = result.usage
    if result.finish_reason != "length" or usage.completion_tokens >= requested:
        return None
    full = f"the model's context of {limits.context:,} tokens is full"
    if usage.prompt_tokens + usage.completion_tokens < limits.context:
        full = f"policy {usage.kv.policy} evicts nothing and its {usage.kv.capacity:,} entries are full"
    return f"the answer was truncated at {usage.completion_tokens:,} of {requested:,} tokens: {full}"


def cache_line(usage: Usage) -> str:
    """Cache usage of one request: prompt tokens, kept, evicted, ring wraps or evicting reviews, bytes.

    If steps read some pages, or heads hold different numbers of entries, it says how many.
    """
    kv = usage.kv
    name = "review" if kv.policy == "scissorhands" else "ring wrap"
    wraps = f"1 {name}" if kv.ring_wraps == 1 else f"{kv.ring_wraps:,} {name}s"
    pages = kv.pages and f", steps read {min(kv.pages.step, kv.pages.held):,} of {kv.pages.held:,} pages"
    heads = kv.heads and f", heads hold {kv.heads.fewest:,} to {kv.heads.most:,}"
    return (
        f"{usage.prompt_tokens:,} prompt tokens | kept {kv.kept:,}, evicted {kv.evicted:,}, {wraps}"
        f"{pages or ''}{heads or ''} | {show_bytes(kv.bytes_held)} KV cache"
    )


def live(usage: Usage) -> int:
    """Entries that hold a token. The last sampled token is never fed, so it has none."""
    fed = usage.prompt_tokens + max(0, usage.completion_tokens - 1)
    return min(fed - usage.kv.evicted, usage.kv.capacity)
