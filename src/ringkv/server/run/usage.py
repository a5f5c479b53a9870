"""UsageCounter: tokens of all choices of one answer, and what the cache did for them."""

from collections.abc import Mapping
from functools import reduce
from time import perf_counter
from typing import Any

from ringkv.base.events import KVUsage
from ringkv.server.run.generation import TokenOutput


class UsageCounter:
    """Counts a prompt once, however many answers it gets. answers: per prompt."""

    def __init__(self, prompt_tokens: int, answers: int = 1) -> None:
        self._prompt, self._answers = prompt_tokens, answers
        self._generated = 0
        self._cached: dict[int, int] = {}  # by prompt
        self._kv: list[KVUsage] = []
        self._drafted = self._accepted = 0
        self.first_token: float | None = None  # `perf_counter` when the first output arrived
        self.queue_seconds: float | None = None  # the longest of the finished choices
        self.prefill_seconds: float | None = None

    def add(self, index: int, output: TokenOutput) -> None:
        """Count an output of the choice at `index`; the choices of one prompt are consecutive."""
        if self.first_token is None:
            self.first_token = perf_counter()
        self._generated += output.token is not None
        if output.finish:
            prompt = index // self._answers
            self._cached[prompt] = max(self._cached.get(prompt, 0), output.finish.usage.cached_tokens)
            self._kv.append(output.finish.usage.kv)
            self.queue_seconds = max(self.queue_seconds or 0.0, output.finish.usage.queue_seconds)
            self.prefill_seconds = max(self.prefill_seconds or 0.0, output.finish.usage.prefill_seconds)
            self._drafted += output.finish.usage.drafted_tokens
            self._accepted += output.finish.usage.accepted_tokens

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's `usage` so far. `kv` sums the finished choices; it is absent until a choice is finished."""
        counts: dict[str, Any] = {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._generated,
            "total_tokens": self._prompt + self._generated,
        }
        if self._kv:
            counts["prompt_tokens_details"] = {"cached_tokens": sum(self._cached.values())}
            if self._drafted:
                counts["completion_tokens_details"] = {
                    "accepted_prediction_tokens": self._accepted,
                    "rejected_prediction_tokens": self._drafted - self._accepted,
                }
            counts["kv"] = reduce(_sum, (usage.counts for usage in self._kv))
        return counts


def _sum(a: Any, b: Any) -> Any:
    """Return the sum of two counts, or of mappings of them: of those that both have or either has. Names stay."""
    if isinstance(a, Mapping):
        return {**b, **a} | {name: _sum(a[name], b[name]) for name in a if name in b}
    return a if isinstance(a, str) else a + b
