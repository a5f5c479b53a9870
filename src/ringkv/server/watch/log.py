"""Log line of an HTTP request: method, path, status, milliseconds, error, tokens, "cancelled" and label of the API key.

It never contains prompt or answer text, nor a key.
"""

import re
from collections.abc import Callable, Mapping
from urllib.parse import quote

from starlette.types import Scope

from ringkv.base.log_lines import LogFormat, json_line
from ringkv.server.protocol.errors import NOT_ANSWERED
from ringkv.server.protocol.keys import caller_of
from ringkv.server.protocol.scope import CANCELLED, MODEL, REASON, REQUEST_ID, TRACE_ID, USAGE_COUNTER
from ringkv.server.run.usage import UsageCounter

LONGEST_PATH = 100  # characters
FAILED = 500  # from this status on, the server is at fault
_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")

Log = Callable[[str], None]
Describe = Callable[[Scope, int, float], str]
"""Return a request's line. Arguments: its scope, its status, and the seconds to the end of the answer."""


def usable_id(sent: bytes | None) -> bytes | None:
    """Return a client's x-request-id if it is short, and of characters that need no escape in a log."""
    return sent if sent and _ID.fullmatch(sent) else None


def described(scope: Scope, status: int, seconds: float) -> str:
    """Return a line like "POST /v1/completions 200 1,234 ms, 57 + 128 tokens, cancelled, key alice"."""
    usage, key = _usage(scope), caller_of(scope).label
    parts = (
        f"{scope['method']} {_path(scope)} {status} {1000 * seconds:,.0f} ms",
        scope.get(REASON, ""),
        f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens" if usage else "",
        "cancelled" if _is_cancelled(scope, status) else "",
        f"key {key}" if key else "",
    )
    return ", ".join(filter(None, parts))


def described_as_json(scope: Scope, status: int, seconds: float) -> str:
    usage = _usage(scope)
    return json_line(
        "error" if status >= FAILED else "info",
        "request",
        request_id=scope.get(REQUEST_ID),
        trace_id=scope.get(TRACE_ID),
        method=scope["method"],
        path=_path(scope),
        status=status,
        milliseconds=round(1000 * seconds, 1),
        model=scope.get(MODEL),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        reason=scope.get(REASON) or None,
        cancelled=_is_cancelled(scope, status) or None,
        key=caller_of(scope).label or None,
    )


DESCRIBE: Mapping[LogFormat, Describe] = {"text": described, "json": described_as_json}


def _path(scope: Scope) -> str:
    return quote(scope["path"])[:LONGEST_PATH]  # a client may send line breaks in it


def _is_cancelled(scope: Scope, status: int) -> bool:
    """Whether the client disconnected before the end of its answer."""
    return status == NOT_ANSWERED or CANCELLED in scope


def _usage(scope: Scope) -> dict[str, int]:
    counter: UsageCounter | None = scope.get(USAGE_COUNTER)
    return counter.usage() if counter else {}
