"""A line for each HTTP request: method, path, status, milliseconds, tokens. Nothing of prompts and answers."""

from collections.abc import Callable
from urllib.parse import quote

from starlette.types import Scope

from ringkv.server.usage import Tally

TALLY = "ringkv.tally"  # in the scope of a request that generates: its `Tally`
LONGEST_PATH = 100  # characters
Log = Callable[[str], None]


def described(scope: Scope, status: int, seconds: float) -> str:
    """Seconds: to the end of the answer. Such as "POST /v1/completions 200 1,234 ms, 57 + 128 tokens"."""
    path = quote(scope["path"])[:LONGEST_PATH]  # a client may have put line breaks into it
    return f"{scope['method']} {path} {status} {1000 * seconds:,.0f} ms{_tokens(scope.get(TALLY))}"


def _tokens(tally: Tally | None) -> str:
    """Of the prompts and of the answers."""
    if tally is None:
        return ""
    used = tally.usage()
    return f", {used['prompt_tokens']:,} + {used['completion_tokens']:,} tokens"
