"""What scripts that drive OpenAI's own client share: `python -m bench.clients.with_openai.NAME URL MODEL`.

The clients' interpreter runs them; each prints JSON, a line a check.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import openai

URL, MODEL = sys.argv[1:]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0, timeout=120)
patient = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0, timeout=120)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CHECKS: list[tuple[str, Callable[[], str]]] = []


def check(what: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Note a function that raises, or says what came of it."""

    def keep(function: Callable[[], str]) -> Callable[[], str]:
        CHECKS.append((what, function))
        return function

    return keep


def main() -> None:
    for what, function in CHECKS:
        try:
            said, ok = function(), True
        except Exception as error:
            said, ok = f"{type(error).__name__}: {error}"[:200], False
        print(json.dumps({"what": what, "ok": ok, "said": said}), flush=True)
