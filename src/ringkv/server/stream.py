"""EventStream: server-sent events in OpenAI's format."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ringkv.server.disconnect import until_disconnected
from ringkv.server.errors import STREAM_ERROR, Disconnected, body_of, kind_of

DONE = b"data: [DONE]\n\n"
# Line breaks that JSON does not escape and that some clients split at.
BREAKS = str.maketrans({char: f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"})


def event(data: Mapping[str, Any]) -> bytes:
    """Encode one event in one line, however a client splits lines."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if not text.isascii():
        text = text.translate(BREAKS)
    return b"data: " + text.encode() + b"\n\n"


def named_event(data: Mapping[str, Any]) -> bytes:
    """Encode one event with an `event:` line that names its type."""
    kind = data.get("type", "error")
    return f"event: {kind}\n".encode() + event({"type": kind, **data})


class EventStream(Response):
    """Sends each chunk as one event, then `done`.

    Nothing is sent before the first chunk, so an earlier error has its own HTTP status; a later one becomes an event.
    When the client disconnects, the generator of the chunks is closed.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[Mapping[str, Any], None],
        event: Callable[[Mapping[str, Any]], bytes] = event,
        done: bytes = DONE,
        error: Callable[[Exception], Mapping[str, Any]] = body_of,
    ) -> None:
        """error: makes the event of an error after the first chunk."""
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._chunks, self._event, self._done, self._error = chunks, event, done, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Disconnected):
            await until_disconnected(receive, self._send_events(scope, send))

    async def _send_events(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            first = await anext(chunks)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send(send, self._event(first))
            try:
                async for chunk in chunks:
                    await _send(send, self._event(chunk))
            except Exception as error:
                scope[STREAM_ERROR] = kind_of(error)
                await _send(send, self._event(self._error(error)))
            await _send(send, self._done, more=False)


async def _send(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
