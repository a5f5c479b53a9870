"""EngineClient: an asyncio client of the engine process. It does not load torch.

    client = await EngineClient.start(config, on_progress)
    async for events in client.submit([[request]]): ...
    await client.close()

Two threads move bytes, so a full pipe or a busy engine never blocks the event loop. All else runs in the event loop.
"""

import asyncio
import atexit
import logging
import signal
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from socket import socket, socketpair
from threading import Thread
from typing import Any, get_args

from ringkv.base import messages, progress
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Limits
from ringkv.base.errors import InvalidRequest, TooSlow
from ringkv.base.events import Event, Failed, Finished
from ringkv.base.failure import Failure, in_short, revive
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.wire.link import LARGEST, Codec, LinkClosed
from ringkv.wire.outbox import QueuedLink
from ringkv.worker.process import BUILDER, STOPPING, main

RequestGroups = Sequence[Sequence[Request]]

log = logging.getLogger(__name__)

UNREAD = 16_384  # events that may wait for their reader
GRACE = 5.0  # seconds in which the engine may end by itself
FROM_ENGINE = Codec(*(set(get_args(messages.EngineMessage)) - set(get_args(messages.ToEngine))))


class EngineClient:
    """One engine process. `start` makes it; use it only from the event loop that started it."""

    limits: Limits
    default_kv: KVChoice

    def __init__(self, process: SpawnProcess, end: socket, on_progress: progress.Progress) -> None:
        self._process = process
        self._link = QueuedLink(end, FROM_ENGINE)
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[messages.Ready] = self._loop.create_future()
        self._death: Failure | None = None
        self._ended = asyncio.Event()
        self._stats = messages.Stats(0, 0, 0, 0)
        self._metrics = messages.EngineMetrics()
        self._slots = messages.Occupancy()
        self._numbers = count()
        self._fetched: dict[int, asyncio.Future[messages.KeptTokens | None]] = {}  # what is awaited, by number
        # A closed stream stays here until its last event arrives, so that its id is not reused too early.
        self._streams: dict[str, Inbox] = {}
        self._reader = Thread(target=self._read, name="engine-reader", daemon=True)
        self._reader.start()
        atexit.register(process.kill)  # so that a program without `close` can still exit

    @classmethod
    async def start(
        cls, config: EngineConfig, on_progress: progress.Progress | None = None, builder: str = BUILDER
    ) -> "EngineClient":
        """Start the process and wait until its engine is ready.

        Raises the error of the build (`DoesNotFit`, `BadWeights`, ...), or `EngineDied`. `on_progress` is called in the
        event loop with (done, total, what).
        """
        ours, theirs = socketpair()
        process = get_context("spawn").Process(target=main, args=(theirs, config, builder), name="ringkv-engine")
        # The child inherits blocked signals, so that none ends it before it ignores them.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        theirs.close()
        client = cls(process, ours, on_progress or progress.silent)
        try:
            ready = await client._ready
        except BaseException:
            process.kill()
            await client.close()
            raise
        client.limits, client.default_kv = ready.limits, ready.default_kv
        connected = 0 if config.prefill else None  # until its first stats arrive
        client._stats = messages.Stats(0, 0, 0, ready.limits.slots, ready.limits.lanes, connected)
        return client

    @property
    def alive(self) -> bool:
        """True from when the engine is ready until it ends."""
        return self._ready.done() and self._death is None

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def ended(self) -> Failure:
        """Wait until the engine ends, and return why. Its process may take a moment longer; `close` waits for it."""
        await self._ended.wait()
        assert self._death is not None
        return self._death

    def stats(self) -> messages.Stats:
        """Return the engine's latest stats."""
        return self._stats

    def metrics(self) -> messages.EngineMetrics:
        """Return what the engine has measured, as of its latest message."""
        return self._metrics

    def watch(self, on: bool) -> None:
        """Let the engine send what it holds, or no longer."""
        self._slots = messages.Occupancy()
        self._link.send(messages.Watch(on))

    def slots(self) -> messages.Occupancy:
        """Return what the engine holds, as of its latest message; nothing unless it is watched."""
        return self._slots

    async def kept(self, name: str) -> messages.KeptTokens | None:
        """Return which prompt tokens a request with `trace` kept; None if the engine does not remember it.

        name: its id, without that of an HTTP request. Raises `EngineDied`.
        """
        self._raise_if_dead()
        number = next(self._numbers)
        answer: asyncio.Future[messages.KeptTokens | None] = self._loop.create_future()
        self._fetched[number] = answer
        try:
            self._link.send(messages.FetchKept(number, name))
            return await answer
        finally:
            del self._fetched[number]

    async def submit(self, groups: RequestGroups) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the events of requests as they arrive, usually those of a step together; see `Inbox`.

        The requests of a group share one prompt. Each request's last event is Finished or Failed. Closing the generator
        early cancels the requests that still run. Raises `InvalidRequest` for an id in use and for requests that are
        too large for one message, `EngineDied` if the engine has ended or ends meanwhile, and `TooSlow`.
        """
        self._raise_if_dead()
        ids = [request.id for group in groups for request in group]
        duplicate = next((name for n, name in enumerate(ids) if name in self._streams or name in ids[:n]), None)
        if duplicate is not None:
            raise InvalidRequest(f"request id {duplicate!r} is in use; choose another, or wait until it ends", "id")
        encoded = [FROM_ENGINE.encode(messages.Submit(tuple(group))) for group in groups]
        if (size := max(map(len, encoded), default=0)) > LARGEST:
            raise InvalidRequest(
                f"the prompt and its settings take {size:,} bytes for all answers, the engine takes {LARGEST:,}; "
                "shorten the prompt, or request fewer answers",
                "prompt",
            )
        for message in encoded:
            self._link.send_bytes(message)
        inbox = Inbox(ids)
        self._streams.update(dict.fromkeys(ids, inbox))
        try:
            async with aclosing(inbox.batches()) as batches:
                async for events in batches:
                    yield events
        finally:
            self._cancel(inbox.running)

    def cancel(self, request_id: str) -> None:
        """End a request; its stream gets Finished with reason "abort". Ignores ids that are unknown or finished."""
        if request_id in self._streams:
            self._link.send(messages.Cancel(request_id))

    def cancel_all(self) -> None:
        """End every request with the tokens that it has."""
        self._cancel(list(self._streams))

    async def close(self, grace: float = GRACE) -> None:
        """End the process, by force after `grace` seconds. Open streams raise `EngineDied`."""
        self._die(Failure("EngineDied", "the engine was shut down; start it again to continue"))
        self._link.send(messages.Shutdown())
        await asyncio.to_thread(self._reader.join, grace)
        if self._reader.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._reader.join)
        atexit.unregister(self._process.kill)

    def _cancel(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.cancel(request_id)

    def _receive(self, message: messages.EngineMessage) -> None:
        match message:
            case messages.Events():
                self._deliver(message)
            case messages.Stats():
                self._stats = message
            case messages.EngineMetrics():
                self._metrics = message
            case messages.Occupancy():
                self._slots = message
            case messages.KeptReply(number, tokens):
                if (answer := self._fetched.get(number)) and not answer.done():
                    answer.set_result(tokens)
            case messages.Progress(done, total, what):
                self._on_progress(done, total, what)
            case messages.Ready():
                if not self._ready.done():
                    self._ready.set_result(message)
            case messages.Fatal(kind, text):
                self._die(Failure(kind, text))

    def _deliver(self, events: messages.Events) -> None:
        woken: dict[Inbox, None] = {}  # a set that keeps its order
        for event in events:
            inbox = self._streams.get(event.request_id)
            if inbox is None:
                continue
            inbox.put(event)
            woken[inbox] = None
            if isinstance(event, Finished | Failed):
                del self._streams[event.request_id]
        for inbox in woken:
            if inbox.wake():
                self._cancel(inbox.running)

    def _die(self, failure: Failure) -> None:
        """Record why the engine ended, and end all streams. Only the first call has an effect."""
        if self._death is not None:
            return
        self._death = failure
        self._ended.set()
        if not self._ready.done():
            self._ready.set_exception(revive(failure))
        for inbox in self._streams.values():
            inbox.end(revive(failure))
        self._streams.clear()
        for answer in self._fetched.values():
            if not answer.done():
                answer.set_exception(revive(failure))

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise revive(self._death)

    def _read(self) -> None:
        """Receive messages, in a thread of its own. Only this thread reaps the process."""
        try:
            while True:
                self._in_loop(self._receive, self._link.receive())
        except LinkClosed:
            pass
        except Exception as error:
            text = f"the engine process sent an invalid message ({in_short(error)}) and was ended"
            log.error("%s", text)
            self._in_loop(self._die, Failure("EngineDied", text))
            self._process.kill()
        self._process.join(GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._link.close()
        self._in_loop(self._die, Failure("EngineDied", _exit_message(self._process.exitcode)))

    def _in_loop(self, function: Callable[[Any], None], argument: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, argument)


def _exit_message(exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return "the engine process was killed (SIGKILL); if memory ran out, give it fewer slots or a smaller budget"
    return f"the engine process ended (exit status {exit_code}); see its log"


class Inbox:
    """The events of a call's requests, on their way to its reader. Used in one event loop.

    A reader that is behind gets all that has arrived at once, in order.

    running: ids of the requests whose last event was not read.
    """

    def __init__(self, request_ids: Collection[str]) -> None:
        self.running = set(request_ids)
        self._events: list[Event] = []
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event, unless the events have ended. `wake` must follow, once for any number of events."""
        if self._error is None:
            self._events.append(event)

    def wake(self) -> bool:
        """Wake the reader. Returns whether it is too slow: the events end here, and its requests must be cancelled."""
        self._arrived.set()
        if len(self._events) < UNREAD or self._error is not None:
            return False
        self.end(TooSlow(f"{len(self._events):,} tokens wait to be read; read the answer as it comes"))
        return True

    def end(self, error: Exception) -> None:
        """Raise an error at the reader, after the events that have arrived. Only the first call has an effect."""
        self._error = self._error or error
        self._arrived.set()

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """Yield what has arrived since the last time, until each request has had its last event."""
        while self.running:
            while not self._events:
                if self._error is not None:
                    raise self._error
                self._arrived.clear()
                await self._arrived.wait()
            events, self._events = self._events, []
            self.running -= {event.request_id for event in events if isinstance(event, Finished | Failed)}
            yield events
