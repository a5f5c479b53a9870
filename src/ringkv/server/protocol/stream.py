"""EventStream: server-sent events in OpenAI's format. until_disconnected: work that ends when the client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ringkv.base.errors import Draining
from ringkv.server.protocol.body_writer import direct_write
from ringkv.server.protocol.errors import Disconnected, body_of, kind_of
from ringkv.server.protocol.scope import CANCELLED, STREAM_ERROR

START, STOP = b"data: ", b"\n\n"  # of an event
DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting for the first token\n\n"
WAITING = nullcontext(lambda: COMMENT)
# Line breaks that JSON does not escape and that some clients split at.
BREAKS = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\x85\u2028\u2029"}
_encoder = msgspec.json.Encoder()

T = TypeVar("T")


def one_line(data: Mapping[str, Any]) -> bytes:
    """Encode JSON in one line, however a client splits lines."""
    encoded = _encoder.encode(data)
    if not encoded.isascii():
        for char, escaped in BREAKS.items():
            encoded = encoded.replace(char, escaped)
    return encoded


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Encode an event, with an `event:` line if it has a name."""
    line = f"event: {name}\n".encode() if name else b""
    return line + START + one_line(data) + STOP


class EventStream(StreamingResponse):
    """Sends events, which are joined if several come at once, then `done`.

    An error in the first `EARLY` seconds has its own HTTP status. Then the headers are sent, and a comment every
    `PAUSE` seconds until the first event, because clients and proxies end a silent connection. `waiting` is entered
    with the first comment and makes them. A later error becomes an event. When the client disconnects, the generator of
    the events is closed.
    """

    media_type = "text/event-stream"
    EARLY, PAUSE = 0.25, 10.0

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        done: bytes = DONE,
        error: Callable[[Exception], bytes] = lambda error: event(body_of(error)),
        waiting: AbstractContextManager[Callable[[], bytes]] = WAITING,
    ) -> None:
        """error: encodes an error that comes after the first event."""
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events, self._done, self._error, self._waiting = events, done, error, waiting
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnected(receive, self._send_events(scope, send))
        except Disconnected:
            scope[CANCELLED] = True
        except Draining as error:
            if not self._has_started:
                raise
            await self._send_error(scope, send, error)

    async def _send_events(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = asyncio.ensure_future(anext(events))
            try:
                await asyncio.wait((first,), timeout=self.EARLY)
                if first.done():
                    first.result()
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                self._has_started = True
                if not (await asyncio.wait((first,), timeout=self.PAUSE))[0]:
                    await self._comment(first, send)
            finally:
                first.cancel()
                await asyncio.wait((first,))
            write = direct_write(scope) or partial(_send, send)
            try:
                await _send(send, first.result())
                async for data in events:
                    await write(data)
            except Exception as error:
                return await self._send_error(scope, send, error)
            await _send(send, self._done, more=False)

    async def _comment(self, first: asyncio.Future[bytes], send: Send) -> None:
        with self._waiting as comment:
            await _send(send, comment())
            while not (await asyncio.wait((first,), timeout=self.PAUSE))[0]:
                await _send(send, comment())

    async def _send_error(self, scope: Scope, send: Send, error: Exception) -> None:
        scope[STREAM_ERROR] = kind_of(error)
        await _send(send, self._error(error))
        await _send(send, self._done, more=False)


async def _send(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def until_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work`, await it, and raise Disconnected.

    Raises Draining if this task is cancelled, which the server does to what still runs when it ends.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    except asyncio.CancelledError:
        raise Draining("the server stopped before the answer was complete; send the request again", 1) from None
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
