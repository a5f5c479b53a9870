"""Outbox: sends an engine's messages from a thread, so that the engine's own thread does not wait for the pipe."""

from collections.abc import Iterator, Sequence
from queue import Empty, Queue
from threading import Thread
from typing import Protocol

from ringkv.base.events import Event
from ringkv.base.messages import EngineMessage, Events
from ringkv.worker.channel import ChannelClosed

MOST_WAITING = 1024  # messages; with 64 slots 65,536 tokens, which take about 10 MB

Outgoing = EngineMessage | Sequence[Event]


class Sender(Protocol):
    def send(self, message: EngineMessage) -> None: ...


class Outbox:
    """Messages arrive in the order in which they were put. Events that wait for the pipe become one message.

    If `MOST_WAITING` messages wait, `put` waits too. Its thread is the only one that sends until `close` returns.
    """

    def __init__(self, channel: Sender) -> None:
        self._channel = channel
        self._waiting: Queue[Outgoing | None] = Queue(MOST_WAITING)
        self._error: ChannelClosed | None = None
        self._thread = Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, message: Outgoing) -> None:
        """Send a message, or the events of a step, soon. Raises `ChannelClosed` if an earlier one could not be sent."""
        if self._error is not None:
            raise self._error
        self._waiting.put(message)

    def close(self) -> None:
        """Wait until everything is sent, or cannot be."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = [*self._next_batch()]
            is_open = batch[-1] is not None
            try:
                for message in merged(batch):
                    self._channel.send(message)
            except ChannelClosed as error:
                self._error = error  # what is put later is discarded

    def _next_batch(self) -> Iterator[Outgoing | None]:
        """Yield what waits, at least one message; None is the last of all."""
        message = self._waiting.get()
        yield message
        while message is not None:
            try:
                message = self._waiting.get_nowait()
            except Empty:
                return
            yield message


def merged(batch: Sequence[Outgoing | None]) -> Iterator[EngineMessage]:
    """Yield the messages in order, with those events in one message that nothing else is between."""
    events: list[Event] = []
    for message in batch:
        if isinstance(message, Sequence):
            events += message
            continue
        if events:
            yield Events.of(events)
            events = []
        if message is not None:
            yield message
    if events:
        yield Events.of(events)
