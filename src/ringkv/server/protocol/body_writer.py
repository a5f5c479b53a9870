"""direct_write: writes parts of a chunked body straight to their connection.

A streamed answer has a part for each token. On the usual way each passes the middlewares, which look at a response's
start only, and h11, whose state a part does not change.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

CYCLE = "ringkv.cycle"  # scope key: uvicorn's object for one response

Write = Callable[[bytes], Awaitable[None]]


def with_cycle(app: ASGIApp) -> ASGIApp:
    """Return an application that finds its response's cycle in its scope, if uvicorn calls it."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle):
            scope[CYCLE] = cycle
        await app(scope, receive, send)

    return wrapped


def direct_write(scope: Scope) -> Write | None:
    """Return what writes parts of the body, which h11 must end; None if they must be sent.

    h11 has begun the body, and it is chunked, which HTTP/1.0 does not know.
    """
    cycle: RequestResponseCycle | None = scope.get(CYCLE)
    if cycle is None or cycle.conn.our_state is not h11.SEND_BODY or cycle.conn.their_http_version != b"1.1":
        return None
    return partial(_write, cycle)


async def _write(cycle: RequestResponseCycle, data: bytes) -> None:
    """Write a part, once the client has read enough of those before; nothing if it has disconnected."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
