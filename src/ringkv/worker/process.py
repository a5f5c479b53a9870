"""The engine process: builds an engine, reports that it is ready, then serves requests until `Shutdown`.

This module does not import an engine. The builder is a name, "module:function", that is imported in the new process,
so the process that starts it never loads torch.
"""

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain, groupby
from socket import socket
from time import monotonic
from typing import Any, get_args

from ringkv.base import log_lines
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.errors import InvalidRequest, RingKVError
from ringkv.base.events import Event
from ringkv.base.failure import describe, in_short
from ringkv.base.guide import MakeGuide
from ringkv.base.messages import (
    Cancel,
    EngineMetrics,
    Events,
    Fatal,
    FetchKept,
    Kept,
    Progress,
    Ready,
    Shutdown,
    Slots,
    Stats,
    Submit,
    ToEngine,
    Watch,
)
from ringkv.base.ranks import RankEnded
from ringkv.machine.parent import exit_with_parent
from ringkv.scheduler.loop import Loop
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
from ringkv.wire.codec import Codec
from ringkv.wire.link import Link, LinkClosed
from ringkv.wire.outbox import Outbox

BUILDER = "ringkv.ranks.build:build"
DECODE_LOOP = "ringkv.handoff.decode_loop:decode_loop"  # of an engine whose prompts are prefilled elsewhere
STOPPING = (signal.SIGINT, signal.SIGTERM)  # a terminal and a supervisor send them to all our processes at once
EVERY = 0.25  # seconds between two snapshots of the slots, and between two `EngineMetrics` of a busy engine
WAITING = 1024  # messages that may wait to be sent; with 64 slots 65,536 tokens, which take about 10 MB
TO_ENGINE = Codec(*get_args(ToEngine))

log = logging.getLogger(__name__)


def main(end: socket, config: EngineConfig, builder: str = BUILDER) -> None:
    """Run until `Shutdown`, or until the other end is closed or the parent ends. The exit status is 1 after `Fatal`."""
    log_lines.inherit()
    _ignore_signals()
    exit_with_parent()
    link = Link(end, TO_ENGINE)
    try:
        fatal = _build_then_serve(link, config, builder)
        if fatal is not None:
            link.send(fatal)
            sys.exit(1)
    except LinkClosed:
        pass  # the client is gone


def _build_then_serve(link: Link, config: EngineConfig, builder: str) -> Fatal | None:
    try:
        engine: Engine = imported(builder)(config, lambda *report: link.send(Progress(*report)))
    except LinkClosed:
        raise
    except RingKVError as error:
        return Fatal(describe(error).kind, str(error))
    except Exception as error:
        log.exception("the engine could not start")
        return Fatal("EngineDied", f"the engine could not start ({in_short(error)}); see its log")
    link.send(Ready(engine.limits, engine.default_kv))
    guides = GuideProcesses(partial(Tokenizer.from_directory, config.model_dir), engine.limits.vocab)
    try:
        serve(link, _loop(engine, config, guides))
    except LinkClosed:
        raise
    except RankEnded as error:
        return Fatal("EngineDied", f"the engine has ended: {error}")
    except Exception as error:
        log.exception("the engine failed")
        return Fatal("EngineDied", f"the engine failed ({in_short(error)}); see its log")
    return None


def serve(link: Link, loop: Loop) -> None:
    """Alternate between messages and steps until `Shutdown`. Blocks only if the loop is idle.

    Messages are sent from a thread, so that this one does not wait for the socket.
    """
    outbox = Outbox(partial(send_merged, link), WAITING)
    try:
        _serve(link, outbox, loop)
    finally:
        outbox.close()


def send_merged(link: Link, items: Sequence[Any]) -> None:
    """Send messages, and events of steps, in order. Events that no message is between become one message."""
    for are_events, group in groupby(items, lambda item: isinstance(item, list)):
        if are_events:
            link.send(Events.of(chain.from_iterable(group)))
        else:
            for message in group:
                link.send(message)


def _serve(link: Link, outbox: Outbox, loop: Loop) -> None:
    sent: Stats | None = None
    measured, due = EngineMetrics(), 0.0
    snapshots: Snapshots | None = None  # None while nobody watches
    while True:
        events: list[Event] = []
        for message in _inbox(link, loop, None if snapshots is None else EVERY):
            match message:
                case Shutdown():
                    return
                case Watch(on):
                    snapshots = Snapshots(loop) if on else None
                case FetchKept(number, name):
                    outbox.put(Kept(number, loop.kept(name)))
                case Cancel(request_id):
                    events += loop.cancel(request_id)
                case Submit(requests):
                    try:
                        events += loop.submit(*requests)
                    except InvalidRequest as error:
                        # An event would go to the request that already has the id. The client refuses such ids itself.
                        log.warning("%s", error)
        events += loop.step()
        if events:
            outbox.put(events)
        if snapshots is not None and (slots := snapshots.next()):
            outbox.put(slots)
        if (loop.idle or monotonic() >= due) and (metrics := loop.metrics()) != measured:
            outbox.put(measured := metrics)
            due = monotonic() + EVERY
        if (stats := loop.stats()) != sent:
            outbox.put(sent := stats)


def _inbox(link: Link, loop: Loop, longest: float | None) -> Iterator[ToEngine]:
    """Yield the messages that wait. An idle loop waits for one, for so many seconds at most; None sets no limit."""
    if loop.idle:
        link.wait(loop.wakers, min((time for time in (loop.patience, longest) if time is not None), default=None))
    while link.is_waiting():
        yield link.receive()


def _loop(engine: Engine, config: EngineConfig, guide: MakeGuide) -> Loop:
    return imported(DECODE_LOOP)(engine, config, guide) if config.prefill else Loop(engine, guide=guide)


def imported(name: str) -> Callable[..., Any]:
    """Return the function of a name, "module:function"."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def _ignore_signals() -> None:
    """Ignore `STOPPING`, which the parent handles. It started us with them blocked."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


class Snapshots:
    """What a loop holds, for those who watch it. Nothing is taken while nobody does. clock: returns seconds."""

    def __init__(self, loop: Loop, clock: Callable[[], float] = monotonic) -> None:
        self._loop, self._clock = loop, clock
        self._due = 0.0
        self._last: Slots | None = None

    def next(self) -> Slots | None:
        """Return a snapshot if one is due and differs from the last one. Call it between steps."""
        now = self._clock()
        if now < self._due:
            return None
        self._due = now + EVERY
        if (slots := self._loop.slots()) == self._last:
            return None
        self._last = slots
        return slots
