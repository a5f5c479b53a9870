"""Log lines as JSON: one object per line, with time, level, event, and the id of the HTTP request that it concerns.

A line never contains the text of an exception, which may quote a prompt, unless RINGKV_DEBUG is set: it has the
exception's class and the places in the code. Text lines are the default; `use_json` switches a process over.
Lines of a rank other than the first name it: "rank 1: ", or the field `rank`.
"""

import json
import logging
import os
import sys
import textwrap
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]

INHERITED = "RINGKV_LOG_FORMAT"  # environment variable by which a process passes its format to its children
PLACES = 8  # innermost lines of code, at most

REQUEST_ID: ContextVar[str] = ContextVar("ringkv.request_id", default="")
"""x-request-id of the HTTP request that this task serves."""


def json_line(level: str, event: str, **fields: Any) -> str:
    """Return one line. Fields that are None are left out. `time` is in UTC, with milliseconds."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    given = {name: value for name, value in fields.items() if value is not None}
    return json.dumps({"time": time, "level": level, "event": event, **given})


def engine_id(name: str) -> str:
    """Return the engine's id of an answer: its own unique name, and the id of the HTTP request."""
    http = REQUEST_ID.get()
    return f"{name}/{http}" if http else name


def answer_id(engine_id: str) -> str:
    """Return the part of an engine's id that is its own unique name."""
    return engine_id.partition("/")[0]


def http_id(engine_id: str) -> str:
    """Return the part of an engine's id that is the id of the HTTP request; "" if there is none."""
    return engine_id.partition("/")[2]


class JsonFormatter(logging.Formatter):
    """Formats records as `json_line`s. A record may have its own `request_id`."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__()
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "") or REQUEST_ID.get() or None
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__)[-PLACES:] if error else []
        is_debugging = os.environ.get("RINGKV_DEBUG", "") not in ("", "0")
        return json_line(
            record.levelname.lower(),
            record.getMessage(),
            logger=record.name,
            rank=self._rank,
            request_id=request_id,
            error=error and type(error).__name__,
            places=error and [f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in frames],  # outermost first
            traceback="".join(traceback.format_exception(error)) if error and is_debugging else None,
        )


class RankFormatter(logging.Formatter):
    """Formats records as text, and begins each line with the rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._prefix = f"rank {rank}: "

    def format(self, record: logging.LogRecord) -> str:
        return textwrap.indent(super().format(record), self._prefix, lambda _: True)


def use_json(rank: int | None = None) -> None:
    """Write every log record of this process, and of the processes that it starts, as JSON on stderr."""
    os.environ[INHERITED] = "json"
    _write_as(JsonFormatter(rank))


def inherit(rank: int | None = None) -> None:
    """Take the format of the process that started this one. rank: of this process, if its lines name it."""
    if os.environ.get(INHERITED) == "json":
        use_json(rank)
    elif rank is not None:
        _write_as(RankFormatter(rank))


def _write_as(formatter: logging.Formatter) -> None:
    """Write every log record and every Python warning of this process on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.root.handlers = [handler]
    logging.getLogger("ringkv").handlers.clear()  # its records reach the root's handler
    logging.captureWarnings(True)


def is_json() -> bool:
    """Whether `use_json` was called in this process."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.root.handlers)
