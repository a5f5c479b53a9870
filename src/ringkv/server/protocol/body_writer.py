"""BodyWriter: writes parts of a chunked body straight to their connection.

A streamed answer has a part for each token. On the usual way each passes the middlewares, which look at a response's
start only, and h11, whose state a part does not change.
"""

from collections.abc import Awaitable, Callable

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

WRITER = "ringkv.body_writer"  # scope key

Write = Callable[[bytes], Awaitable[None]]


class BodyWriter:
    """One response's. `h11` must have begun the body, and must end it."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_usable(self) -> bool:
        """Whether the body has begun and is chunked, which HTTP/1.0 does not know."""
        connection = self._cycle.conn
        return connection.our_state is h11.SEND_BODY and connection.their_http_version == b"1.1"

    async def write(self, data: bytes) -> None:
        """Write a part, once the client has read enough of those before; nothing if it has disconnected."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def with_body_writer(app: ASGIApp) -> ASGIApp:
    """Return an application that finds its response's writer in its scope, if uvicorn calls it."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle):
            scope[WRITER] = BodyWriter(cycle)
        await app(scope, receive, send)

    return wrapped


def direct_write(scope: Scope) -> Write | None:
    """Return what writes parts of the body that has begun; None if they must be sent."""
    writer: BodyWriter | None = scope.get(WRITER)
    return writer.write if writer is not None and writer.is_usable else None
