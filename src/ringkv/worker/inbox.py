"""Inbox: the events of one call's requests, on their way from the engine's channel to one reader."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence

from ringkv.base.errors import TooSlow
from ringkv.base.events import Event, Failed, Finished

MOST_UNREAD = 16_384  # events that wait for their reader


class Inbox:
    """Used in one event loop. A reader that is behind gets all that has arrived at once, in order.

    running: ids of the requests whose last event was not read.
    """

    def __init__(self, request_ids: Collection[str]) -> None:
        self.running = set(request_ids)
        self._events: list[Event] = []
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None  # a reader that waits

    def put(self, event: Event) -> None:
        """Add an event, unless the events have ended. `wake` must follow, once for any number of events."""
        if self._error is None:
            self._events.append(event)

    def wake(self) -> bool:
        """Wake the reader. Returns whether it is too slow: the events end here, and its requests must be cancelled."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if len(self._events) < MOST_UNREAD or self._error is not None:
            return False
        self.end(TooSlow(f"{len(self._events):,} tokens wait to be read; read the answer as it comes"))
        return True

    def end(self, error: Exception) -> None:
        """Raise an error at the reader, after the events that have arrived. Only the first call has an effect."""
        self._error = self._error or error
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """Yield what has arrived since the last time, until each request has had its last event."""
        while self.running:
            while not self._events:
                if self._error is not None:
                    raise self._error
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
            events, self._events = self._events, []
            self.running -= {event.request_id for event in events if isinstance(event, Finished | Failed)}
            yield events
