"""The engine process: builds an engine, reports that it is ready, then serves requests until `Shutdown`.

This module does not import an engine. The builder is a name, "module:function", that is imported in the new process,
so the process that starts it never loads torch.
"""

import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import chain, groupby
from socket import socket
from time import monotonic
from typing import Any, get_args

from ringkv.base import log_lines, messages
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.errors import InvalidRequest, RingKVError
from ringkv.base.events import Event, Scored
from ringkv.base.failure import describe, in_short
from ringkv.base.ranks import RankEnded
from ringkv.machine.parent import exit_with_parent
from ringkv.scheduler.loop import Loop
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
from ringkv.wire.link import Codec, Link, LinkClosed
from ringkv.wire.outbox import Outbox

BUILDER = "ringkv.ranks.build:build"
DECODE_LOOP = "ringkv.handoff.decode_loop:decode_loop"  # of an engine whose prompts are prefilled elsewhere
STOPPING = (signal.SIGINT, signal.SIGTERM)  # a terminal and a supervisor send them to all our processes at once
EVERY = 0.25  # seconds between two snapshots of the slots, and between two `EngineMetrics` of a busy engine
WAITING = 1024  # messages that may wait to be sent; with 64 slots 65,536 tokens, which take about 10 MB
JOINED = 1 << 18  # log-probabilities, of about 15 bytes, from which a message takes no more events
TO_ENGINE = Codec(*get_args(messages.ToEngine))

log = logging.getLogger(__name__)


def main(end: socket, config: EngineConfig, builder: str = BUILDER) -> None:
    """Run until `Shutdown`, or until the other end is closed or the parent ends. The exit status is 1 after `Fatal`."""
    log_lines.inherit()
    for number in STOPPING:  # the parent handles them, and started this process with them blocked
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    exit_with_parent()
    link = Link(end, TO_ENGINE)
    try:
        fatal = _build_then_serve(link, config, builder)
        if fatal is not None:
            link.send(fatal)
            sys.exit(1)
    except LinkClosed:
        pass  # the client is gone


def _build_then_serve(link: Link, config: EngineConfig, builder: str) -> messages.Fatal | None:
    try:
        engine: Engine = imported(builder)(config, lambda *report: link.send(messages.Progress(*report)))
    except LinkClosed:
        raise
    except RingKVError as error:
        return messages.Fatal(describe(error).kind, str(error))
    except Exception as error:
        log.exception("the engine could not start")
        return messages.Fatal("EngineDied", f"the engine could not start ({in_short(error)}); see its log")
    link.send(messages.Ready(engine.limits, engine.default_kv))
    guides = GuideProcesses(partial(Tokenizer.from_directory, config.model_dir), engine.limits.vocab)
    try:
        serve(link, imported(DECODE_LOOP)(engine, config, guides) if config.prefill else Loop(engine, guide=guides))
    except LinkClosed:
        raise
    except RankEnded as error:
        return messages.Fatal("EngineDied", f"the engine has ended: {error}")
    except Exception as error:
        log.exception("the engine failed")
        return messages.Fatal("EngineDied", f"the engine failed ({in_short(error)}); see its log")
    return None


def serve(link: Link, loop: Loop) -> None:
    """Alternate between messages and steps until `Shutdown`. Blocks only if the loop is idle.

    Messages are sent from a thread, so that the engine's thread does not wait for the socket.
    """
    with closing(Outbox(partial(send_merged, link), WAITING)) as outbox:
        stats, metrics = Changes(loop.stats), Changes(loop.metrics, messages.EngineMetrics(), EVERY)
        slots: Changes | None = None  # None while nobody watches
        while True:
            events: list[Event] = []
            for message in _inbox(link, loop, None if slots is None else EVERY):
                match message:
                    case messages.Shutdown():
                        return
                    case messages.Watch(on):
                        slots = Changes(loop.scheduler.slots, every=EVERY) if on else None
                    case messages.FetchKept(number, name):
                        outbox.put(messages.KeptReply(number, loop.kept(name)))
                    case messages.Cancel(request_id):
                        events += loop.cancel(request_id)
                    case messages.Submit(requests):
                        try:
                            events += loop.submit(*requests)
                        except InvalidRequest as error:
                            # An event would go to the request that has the id. The client refuses such ids itself.
                            log.warning("%s", error)
            events += loop.step()
            if events:
                outbox.put(events)
            for value in (slots and slots.next(), metrics.next(is_due=loop.idle), stats.next()):
                if value is not None:
                    outbox.put(value)


def send_merged(link: Link, items: Sequence[Any]) -> None:
    """Send messages, and events of steps, in order. Events that no message is between are joined, up to `JOINED`."""
    for are_events, group in groupby(items, lambda item: isinstance(item, list)):
        if are_events:
            for events in _joined(chain.from_iterable(group)):
                link.send(messages.Events.of(events))
        else:
            for message in group:
                link.send(message)


def _joined(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield runs of events, each until it has `JOINED` log-probabilities or is the last."""
    run, size = list[Event](), 0
    for event in events:
        run.append(event)
        size += 1 + (sum(1 + len(each.top) for each in event.logprobs) if isinstance(event, Scored) else 0)
        if size >= JOINED:
            yield run
            run, size = [], 0
    if run:
        yield run


def _inbox(link: Link, loop: Loop, longest: float | None) -> Iterator[messages.ToEngine]:
    """Yield the messages that wait. An idle loop waits for a message. longest: seconds; None sets no limit."""
    if loop.idle:
        link.wait(loop.wakers, min((time for time in (loop.patience, longest) if time is not None), default=None))
    while link.is_waiting():
        yield link.receive()


def imported(name: str) -> Callable[..., Any]:
    """Return the function of a name, "module:function"."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)  # type: ignore[no-any-return]


class Changes:
    """A value of a loop, returned when it has changed. every: seconds for which it is not read again."""

    def __init__(self, read: Callable[[], Any], last: Any = None, every: float = 0.0) -> None:
        self._read, self._last, self._every = read, last, every
        self._due = 0.0

    def next(self, is_due: bool = False) -> Any:
        """Return the value if it is due and differs from the last; else None. Call it between steps."""
        now = monotonic()
        if now < self._due and not is_due:
            return None
        self._due, before, self._last = now + self._every, self._last, self._read()
        return None if self._last == before else self._last
