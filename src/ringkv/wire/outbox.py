"""Outbox: sends from a thread of its own, so that who has something to send does not wait for the other end."""

import socket
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import Any

from ringkv.wire.link import LARGEST, Codec, Link, LinkClosed

FLUSH = 1.0  # seconds in which a link that is closed sends what waits


class Outbox:
    """Items are sent in the order in which they were put. Once the other end is closed they are discarded.

    An error of `send` is raised by the next `put`. The thread goes on and discards items, so that no `put` waits for
    ever.

    send: sends a list of items that waited; called in the thread. limit: if so many wait, `put` waits too; 0: never.
    """

    def __init__(self, send: Callable[[list[Any]], object], limit: int = 0) -> None:
        self._send = send
        self._waiting: Queue[Any] = Queue(limit)
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, item: Any) -> None:
        """Send an item soon. None is no item. Raises an error that sending had."""
        if self._error is not None:
            raise self._error
        self._waiting.put(item)

    def close(self, seconds: float | None = None) -> None:
        """Wait until everything is sent or discarded, for so many seconds at most."""
        self._waiting.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        items: list[Any] = []
        while not items or items[-1] is not None:
            items = [self._waiting.get()]
            with suppress(Empty):
                while items[-1] is not None:
                    items.append(self._waiting.get_nowait())
            try:
                if self._error is None:
                    self._send([item for item in items if item is not None])
            except LinkClosed:
                pass
            except Exception as error:
                self._error = error


class QueuedLink(Link):
    """A link to which any thread may send without waiting. One thread receives."""

    def __init__(self, end: socket.socket, codec: Codec, largest: int = LARGEST) -> None:
        super().__init__(end, codec, largest)
        self._outbox = Outbox(self._send_each)

    def send_bytes(self, encoded: bytes | memoryview, *raw: bytes | memoryview) -> None:
        """Send a message soon. Raises `InvalidMessage` for a message that is too large."""
        self._check(len(encoded))
        self._outbox.put((encoded, *raw))

    def close(self) -> None:
        """Send what waits, within `FLUSH` seconds, and free the socket. The thread that receives calls it last."""
        self._outbox.close(FLUSH)
        self.shut()
        self._outbox.close()
        super().close()

    def _send_each(self, messages: list[Any]) -> None:
        for parts in messages:
            super().send_bytes(*parts)
