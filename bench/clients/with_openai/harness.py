"""harness: shared parts of the scripts that drive OpenAI's client.

    python -m bench.clients.with_openai.NAME URL MODEL

The clients' interpreter runs the scripts. Each prints one JSON line per check.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import openai

URL, MODEL = sys.argv[1:]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0, timeout=120)
async_client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0, timeout=120)
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
TOOLS: Any = {"model": MODEL, "tools": [WEATHER]}
CHECKS: list[tuple[str, Callable[[], str]]] = []


def check(what: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a function that returns a detail of its result, or raises."""

    def register(function: Callable[[], str]) -> Callable[[], str]:
        CHECKS.append((what, function))
        return function

    return register


def send_result(messages: Any, message: Any) -> str:
    """Send the result of a message's tool call back, after these messages. Return the size of that prompt."""
    (call,) = message.tool_calls or ()
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    answered = [*messages, message.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(**TOOLS, messages=answered, max_tokens=16)
    assert answer.usage is not None
    return f"{answer.usage.prompt_tokens} tokens of prompt"


def main() -> None:
    for what, function in CHECKS:
        try:
            detail, ok = function(), True
        except Exception as error:
            detail, ok = f"{type(error).__name__}: {error}"[:200], False
        print(json.dumps({"what": what, "ok": ok, "detail": detail}), flush=True)
