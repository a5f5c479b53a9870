"""follow: one streamed answer to its end, shown as it comes and timed."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ringkv.base.engine import Limits
from ringkv.base.events import Usage
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.llm.result import Piece, Result


@dataclass(frozen=True)
class Answered:
    """An answer, and the seconds it took: from the request to its first token, and from there to its last."""

    result: "Result"
    first_token_s: float
    decode_s: float

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return self.result.usage.prompt_tokens / self.first_token_s

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first; None when there was no second."""
        later = self.result.usage.completion_tokens - 1
        return later / self.decode_s if later and self.decode_s else None

    def line(self) -> str:
        """What a user wants to know, in one line."""
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
        return asdict(self.result) | {"timing": timing}


def follow(pieces: Iterable["Piece"], show: Callable[["Piece"], None]) -> Answered:
    """Raises what the engine reports. A caller that leaves early closes the iterator, which cancels the request."""
    started = time.perf_counter()
    first = last = 0.0
    for piece in pieces:
        if piece.token is not None:
            last = time.perf_counter() - started
            first = first or last
        show(piece)
    assert piece.result is not None, "an answer ends with its result"
    return Answered(piece.result, first or last, last - first)


def cut_short(result: "Result", asked: int, limits: Limits) -> str | None:
    """Why an answer has fewer tokens than were asked for; None for one that came to its own end, or to `asked`."""
    usage = result.usage
    if result.finish_reason != "length" or usage.completion_tokens >= asked:
        return None
    full = f"the model's context of {limits.context:,} tokens is full"
    if usage.prompt_tokens + usage.completion_tokens < limits.context:
        full = f"policy {usage.kv.policy} evicts nothing and its {usage.kv.capacity:,} entries are full"
    return f"the answer was cut at {usage.completion_tokens:,} of {asked:,} tokens: {full}"


def cache_line(usage: Usage) -> str:
    """The proof counters of one request."""
    kv = usage.kv
    wraps = "1 ring wrap" if kv.ring_wraps == 1 else f"{kv.ring_wraps:,} ring wraps"
    return (
        f"{usage.prompt_tokens:,} prompt tokens | kept {kv.kept:,}, evicted {kv.evicted:,}, {wraps} | "
        f"{show_bytes(kv.bytes_held)} held"
    )


def live(usage: Usage) -> int:
    """Entries that hold a token: all seen, but for the evicted; the last token drawn is never fed."""
    seen = usage.prompt_tokens + max(0, usage.completion_tokens - 1)
    return min(seen - usage.kv.evicted, usage.kv.capacity)
