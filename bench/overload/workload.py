"""workload: what the clients of the load test send."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

COMPLETIONS = "/v1/completions"
LENGTHS = (24, 120, 480)  # tokens of prompts; the longest fits in one chunk
ANSWERS = (8, 24, 48)  # tokens of answers

Kind = Literal["ask", "leave", "malform"]


@dataclass(frozen=True)
class Question:
    """A greedy completion of a known length."""

    prompt: str
    tokens: int

    def body(self, stream: bool) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }


@dataclass(frozen=True)
class Mix:
    """leaving, malformed: shares of all requests."""

    leaving: float = 0.2
    malformed: float = 0.05

    def kind(self, random: Random) -> Kind:
        number = random.random()
        if number < self.malformed:
            return "malform"
        return "leave" if number < self.malformed + self.leaving else "ask"


def questions(prompts: Sequence[str]) -> list[Question]:
    return [Question(prompt, ANSWERS[number % len(ANSWERS)]) for number, prompt in enumerate(prompts)]


# Path and body of requests that must get a 4xx. None sends a GET.
MALFORMED: Sequence[tuple[str, bytes | Mapping[str, Any] | None]] = (
    (COMPLETIONS, b""),
    (COMPLETIONS, b"{"),
    (COMPLETIONS, b"\xff\xfe{}"),
    (COMPLETIONS, b"[" * 10_000),
    (COMPLETIONS, {"prompt": {"text": "a"}}),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}),
    (COMPLETIONS, {"prompt": "a", "temperature": 1e39}),
    (COMPLETIONS, {"prompt": "a", "priority": 1000}),
    (COMPLETIONS, {"prompt": "a", "model": "another"}),
    (COMPLETIONS, {"prompt": "a", "guided_regex": "("}),
    (COMPLETIONS, {"prompt": [10**9]}),
    (COMPLETIONS, {"prompt": " word" * 100_000}),
    (COMPLETIONS, None),
    ("/v1/chat/completions", {"messages": "hello"}),
    ("/v1/nothing", {}),
)
