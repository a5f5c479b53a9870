"""HTTP/1.1 connections with bounds on their number, on slow senders and on slow readers.

uvicorn waits for ever for the rest of a request's headers, and for a client that does not read. Here a client that
owes bytes, or that does not take any, is cut off after `seconds`. When there are too many, a new connection takes the
place of the connection that has owed bytes for longest.
"""

import asyncio
import json
import socket
import sys
from dataclasses import dataclass
from time import monotonic
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from ringkv.server.protocol.body_writer import with_cycle
from ringkv.server.protocol.errors import ErrorKind, body

UNSENT = 64 << 10  # bytes that wait in this process for a client, above which its answer pauses
SOCKET_BUFFER = 256 << 10  # bytes of the kernel's send buffer, which is fixed instead of growing
LEAST_READ = 16 << 10  # bytes that a client must read in `seconds` while its answer is paused
RETRY = "5"  # seconds
REASONS: dict[int, tuple[str, str]] = {  # status -> code and message
    400: ("bad_http", "this is not a valid HTTP/1.1 request"),
    408: ("too_slow", "the headers of the request did not arrive in time; send them faster"),
    414: ("url_too_long", "the URL is too long; shorten it"),
    431: ("headers_too_large", "the headers of the request are too large; send fewer or shorter ones"),
    503: ("too_many_connections", "this server has as many connections as it takes; connect again later"),
}


@dataclass(frozen=True)
class ConnectionLimits:
    """seconds: that a client may take to send its headers, and to read `LEAST_READ` bytes of what waits for it."""

    connections: int = 1000
    seconds: float = 30.0


def bounded_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return the class for `uvicorn.Config(http=...)`."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"limits": limits})


class _BoundedProtocol(H11Protocol):
    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = with_cycle(self.app)
        self._deadlines: dict[str, asyncio.TimerHandle] = {}  # until which the client must "send" or "read"
        self._quiet_since = monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT)
        _bound_socket(transport.get_extra_info("socket"), self.limits.seconds)
        self._await_client()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._owes_silently:
            self._await_client()
        else:
            self._end_deadline("send")

    def pause_writing(self) -> None:
        super().pause_writing()
        if "read" not in self._deadlines:
            self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_deadline("read")

    def on_response_complete(self) -> None:
        self._quiet_since = monotonic()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.limits.seconds, self.transport.abort)  # if it does not read the end of its answer

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline("send")
        self._end_deadline("read")
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed. uvicorn calls it while it handles h11's error."""
        hint = getattr(sys.exception(), "error_status_hint", 400)
        if hint == 431 and b"\n" not in self.conn.trailing_data[0]:
            hint = 414
        self._refuse(hint if hint in REASONS else 400)

    @property
    def owes(self) -> bool:
        """Whether the rest of a request, or another request, is to come from the client."""
        request = self._request
        return request is None or request.response_complete or request.more_body

    @property
    def _request(self) -> RequestResponseCycle | None:
        """The last request; uvicorn's own attribute is declared as if there always were a request."""
        return self.cycle

    @property
    def _owes_silently(self) -> bool:
        """Whether nothing else notices if the rest does not come: headers, or a body that is not read by anybody."""
        is_answered = self._request is not None and self._request.response_complete
        return self.conn.their_state is h11.IDLE or (self.conn.their_state is h11.SEND_BODY and is_answered)

    def _await_client(self) -> None:
        if "send" not in self._deadlines:
            self._deadlines["send"] = self.loop.call_later(self.limits.seconds, self._refuse, 408)

    def _await_reading(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._deadlines["read"] = self.loop.call_later(self.limits.seconds, self._check_reading, unsent)

    def _check_reading(self, unsent: int) -> None:
        """Close the connection if too little of what was unsent has been read."""
        if unsent - self.transport.get_write_buffer_size() < LEAST_READ:
            self.transport.abort()
        else:
            self._await_reading()

    def _end_deadline(self, name: str) -> None:
        if timer := self._deadlines.pop(name, None):
            timer.cancel()

    def _make_room(self) -> None:
        """Close the connection that has owed bytes for longest, or this connection if the others owe none."""
        owing = [each for each in self.connections if isinstance(each, _BoundedProtocol) and each.owes]
        if others := [each for each in owing if each is not self]:
            oldest = min(others, key=lambda each: each._quiet_since)
            self.connections.discard(oldest)
            oldest.transport.abort()
        else:
            self._refuse(503)

    def _refuse(self, status: int) -> None:
        """Send an error and close the connection; only close it if an answer has begun."""
        self._end_deadline("send")
        if request := self._request:
            request.disconnected = True
            request.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return self.transport.abort()
        code, message = REASONS[status]
        kind = ErrorKind(status, "server_error" if status >= 500 else "invalid_request_error", code)
        content = json.dumps(body(message, kind)).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
        headers |= {"retry-after": RETRY} if status == 503 else {}
        response = h11.Response(status_code=status, headers=list(headers.items()), reason=STATUS_PHRASES[status])
        for event in (response, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _bound_socket(connection: socket.socket, seconds: float) -> None:
    """Fix the send buffer, and let the kernel end a connection whose client takes nothing for so many seconds.

    Small parts are sent at once: otherwise a part waits up to 40 ms, until the client confirms the part before.
    """
    # asyncio does this itself, but only for a listener that names its protocol.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
