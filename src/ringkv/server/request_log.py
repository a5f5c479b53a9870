"""Log line of an HTTP request: method, path, status, milliseconds, tokens and label of the API key.

It never contains prompt or answer text, nor a key.
"""

from collections.abc import Callable
from urllib.parse import quote

from starlette.types import Scope

from ringkv.server.keys import caller_of
from ringkv.server.usage import UsageCounter

USAGE_COUNTER = "ringkv.usage_counter"  # scope key, only for requests that generate
LONGEST_PATH = 100  # characters
Log = Callable[[str], None]


def described(scope: Scope, status: int, seconds: float) -> str:
    """Return a line like "POST /v1/completions 200 1,234 ms, 57 + 128 tokens, key alice".

    seconds: to the end of the answer.
    """
    path = quote(scope["path"])[:LONGEST_PATH]  # a client may send line breaks in it
    return f"{scope['method']} {path} {status} {1000 * seconds:,.0f} ms{_tokens(scope.get(USAGE_COUNTER))}{_key(scope)}"


def _tokens(counter: UsageCounter | None) -> str:
    """Return the token counts of the prompts and of the answers, or an empty string."""
    if counter is None:
        return ""
    usage = counter.usage()
    return f", {usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens"


def _key(scope: Scope) -> str:
    """Return the label of the request's API key, or an empty string."""
    label = caller_of(scope).label
    return f", key {label}" if label else ""
