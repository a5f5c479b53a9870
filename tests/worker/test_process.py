import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from socket import socketpair
from threading import Thread

import psutil
import pytest
import toy

from ringkv.base.events import Finished, Token
from ringkv.base.messages import (
    Cancel,
    EngineMessage,
    EngineMetrics,
    Events,
    Fatal,
    FetchKept,
    KeptReply,
    Occupancy,
    Progress,
    Ready,
    Shutdown,
    Stats,
    Submit,
    Watch,
)
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop
from ringkv.wire.link import Link, LinkClosed
from ringkv.worker.client import FROM_ENGINE
from ringkv.worker.process import STOPPING, TO_ENGINE, main, serve


def request(name: str, max_tokens: int = 3) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=max_tokens))


@contextmanager
def served(seconds: float = 0.0) -> Iterator[Link]:
    """Yield our end of a channel to a toy engine in a thread. The thread must end with the block."""
    ours, theirs = socketpair()
    ended = []

    def run() -> None:
        try:
            serve(Link(theirs, TO_ENGINE), Loop(toy.ToyEngine(seconds=seconds)))
            ended.append("shut down")
        except LinkClosed:
            ended.append("channel closed")

    thread = Thread(target=run, daemon=True)
    thread.start()
    yield Link(ours, FROM_ENGINE)
    thread.join(10)
    assert ended == ["shut down"]


def until_idle(channel: Link) -> list:
    """Return all messages up to the stats of an idle engine."""
    messages = []
    while not messages or messages[-1] != Stats(0, 0, 0, 2):
        messages.append(channel.receive())
    return messages


@contextmanager
def spawned(builder: str) -> Iterator[tuple[Link, psutil.Process]]:
    ours, theirs = socketpair()
    process = get_context("spawn").Process(target=main, args=(theirs, toy.config(), builder))
    process.start()
    theirs.close()
    try:
        yield Link(ours, FROM_ENGINE), psutil.Process(process.pid)
    finally:
        process.kill()
        process.join()


def test_a_requests_events_are_sent():
    with served() as channel:
        channel.send(Submit((request("a"),)))
        events = [event for message in until_idle(channel) if isinstance(message, Events) for event in message]
        channel.send(Shutdown())
    assert [event.token for event in events if isinstance(event, Token)] == toy.answer((1, 2, 3), 3)
    assert isinstance(events[-1], Finished)


def test_stats_are_sent_when_they_change():
    with served() as channel:
        channel.send(Submit((request("a"),)))
        stats = [message for message in until_idle(channel) if isinstance(message, Stats)]
        channel.send(Shutdown())
    assert stats == [Stats(0, 1, 0, 1), Stats(0, 0, 1, 1), Stats(0, 0, 0, 2)]


def test_what_was_measured_is_sent_when_the_engine_is_idle():
    with served() as channel:
        channel.send(Submit((request("a"), request("b"))))
        measured = [message for message in until_idle(channel) if isinstance(message, EngineMetrics)]
        channel.send(Shutdown())
    assert len(measured) <= 3  # the first at once, the last when idle, and none within 0.25 s of another
    assert (measured[-1].queue.count, measured[-1].prefill.count, measured[-1].compress.count) == (2, 1, 2)
    assert measured[-1].step.count == 4  # three tokens each, the second begins a step later


def test_slots_are_sent_only_while_somebody_watches():
    with served(seconds=0.01) as channel:
        channel.send(Submit((request("a", max_tokens=30),)))
        unwatched = until_idle(channel)
        channel.send(Watch(True))
        channel.send(Submit((request("b", max_tokens=60),)))
        began, shown = time.monotonic(), []
        while not any(one.slots for one in shown) or shown[-1] != Occupancy():
            message = channel.receive()
            shown += [message] if isinstance(message, Occupancy) else []
        passed = time.monotonic() - began
        channel.send(Watch(False))
        channel.send(Submit((request("c", max_tokens=30),)))
        after = until_idle(channel)
        channel.send(Shutdown())
    assert not any(isinstance(message, Occupancy) for message in (*unwatched, *after))
    assert 3 <= len(shown) <= 4 * passed + 2
    seen = [one.slots[0].seen for one in shown if one.slots]
    assert seen == sorted(set(seen))
    assert {(one.slots[0].id, one.slots[0].prompt) for one in shown if one.slots} == {("b", 3)}


def test_an_idle_engine_that_is_watched_says_what_it_holds_once():
    with served() as channel:
        channel.send(Watch(True))
        first = [channel.receive() for _ in range(2)]
        channel.wait(seconds=0.6)
        assert first.count(Occupancy()) == 1
        assert not channel.is_waiting()
        channel.send(Shutdown())


def test_what_was_kept_is_fetched_by_number():
    with served() as channel:
        channel.send(Submit((replace(request("a/http"), trace=True),)))
        until_idle(channel)
        channel.send(FetchKept(5, "nobody"))
        channel.send(FetchKept(7, "a"))
        nothing, found = channel.receive(), channel.receive()
        channel.send(Shutdown())
    assert nothing == KeptReply(5, None)
    assert (found.number, found.found.tokens, found.found.policy) == (7, 3, "streaming")


def test_a_running_request_can_be_cancelled():
    with served() as channel:
        channel.send(Submit((request("a", max_tokens=10**9),)))
        while not isinstance(channel.receive(), Events):
            pass
        channel.send(Cancel("a"))
        last = [message for message in until_idle(channel) if isinstance(message, Events)][-1]
        channel.send(Shutdown())
    assert [end.reason for end in last.finished] == ["abort"]


def test_a_request_with_an_id_in_use_is_dropped_and_the_first_continues():
    with served() as channel:
        channel.send(Submit((request("a", max_tokens=10**9),)))
        while not isinstance(channel.receive(), Events):
            pass
        channel.send(Submit((request("a"),)))
        channel.send(Cancel("a"))
        ends = [end for message in until_idle(channel) if isinstance(message, Events) for end in message.finished]
        channel.send(Shutdown())
    assert [end.reason for end in ends] == ["abort"]


def test_the_process_reports_its_progress_and_then_ready():
    with spawned("toy:build") as (channel, process):
        messages = [channel.receive() for _ in range(3)]
        channel.send(Shutdown())
        assert process.wait(10) == 0
    assert messages[:2] == [Progress(1, 2, "toy graphs"), Progress(2, 2, "toy graphs")]
    assert isinstance(messages[2], Ready)
    assert (messages[2].limits.slots, messages[2].default_kv) == (4, toy.config().kv)


@pytest.mark.parametrize(
    ("builder", "kind", "text"),
    [
        ("toy:build_too_big", "DoesNotFit", "4 slots need 9 GB, this machine has 8; ask for 3 slots"),
        ("toy:build_with_a_bug", "EngineDied", "could not start (KeyError: 'model.norm.weight')"),
        ("toy:no_such_builder", "EngineDied", "could not start (AttributeError"),
    ],
)
def test_a_failed_build_is_reported_and_ends_the_process(builder, kind, text):
    with spawned(builder) as (channel, process):
        fatal = channel.receive()
        assert process.wait(10) == 1
    assert isinstance(fatal, Fatal)
    assert fatal.kind == kind
    assert text in fatal.message


def test_a_failed_engine_is_reported_and_ends_the_process():
    with spawned("toy:build") as (channel, process):
        while not isinstance(channel.receive(), Ready):
            pass
        channel.send(Submit((request("fatal"),)))
        while not isinstance(message := channel.receive(), Fatal):
            pass
        assert process.wait(10) == 1
    assert message.kind == "EngineDied"
    assert "fatal is broken" in message.message


def test_the_process_ends_when_the_other_end_is_closed():
    with spawned("toy:build") as (channel, process):
        while not isinstance(channel.receive(), Ready):
            pass
        channel.close()
        assert process.wait(10) == 0


@pytest.mark.parametrize("number", STOPPING)
def test_the_process_ignores_signals_that_its_parent_handles(number):
    with spawned("toy:build") as (channel, process):
        while not isinstance(channel.receive(), Ready):
            pass
        process.send_signal(number)
        channel.send(Submit((request("a"),)))
        while not isinstance(message := channel.receive(), Events) or not message.finished:
            pass
        channel.send(Shutdown())
        assert process.wait(10) == 0


PARENT = """
import os, socket, sys
from multiprocessing import get_context
import toy
from ringkv.worker.process import main

if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    process = get_context("spawn").Process(target=main, args=(theirs, toy.config(), "toy:build_forever"))
    process.start()
    ours.recv(1)  # progress: the build has started
    print(process.pid, flush=True)
    sys.stdin.read()
"""


def test_the_process_ends_with_its_parent_even_while_building(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as parent:
        engine = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        engine.wait(10)
    assert not engine.is_running()


@pytest.mark.parametrize(
    "sent", [b"\xc1", b"", FROM_ENGINE.encode(Stats(1, 2, 3, 4))], ids=["no msgpack", "empty", "stats"]
)
def test_an_invalid_message_to_the_engine_ends_it_with_a_reason(sent):
    with spawned("toy:build") as (channel, process):
        while not isinstance(channel.receive(), Ready):
            pass
        channel.send_bytes(sent)
        while not isinstance(message := channel.receive(), Fatal):
            pass
        assert process.wait(10) == 1
    assert "InvalidMessage" in message.message


class Scripted:
    """A channel that cancels request "a" when it has reached a stage, and shuts the engine down a step later."""

    def __init__(self, engine: toy.ToyEngine, loop: Loop, stage: Callable[[], bool], *first: Submit) -> None:
        self._engine, self._loop, self._stage, self._inbox = engine, loop, stage, list(first)
        self.sent: list[EngineMessage] = []
        self.calls: list[int] = []  # of the engine: before the cancellation, and a step later
        self._cancelled = False  # and the step has begun
        self.freed: Stats | None = None

    def wait(self, others: Sequence[int], seconds: float | None) -> None:
        """Is called only while there is a message."""
        assert self._inbox

    def is_waiting(self) -> bool:
        """Is called before each step, until it returns False."""
        if self._inbox:
            return True
        match len(self.calls), self._cancelled:
            case 0, False if self._stage():
                self.sent.clear()
                self._note()
                self._inbox.append(Cancel("a"))
                return True
            case 1, True:
                self._note()
                self._inbox.append(Shutdown())
                return True
        self._cancelled = bool(self.calls)
        return False

    def _note(self) -> None:
        self.calls.append(len(self._engine.log))
        self.freed = self._loop.stats()

    def receive(self) -> EngineMessage:
        return self._inbox.pop(0)

    def send(self, message: EngineMessage) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("stage", ["queued", "mid-prefill", "mid-decode"])
def test_a_cancelled_request_frees_everything_within_one_step(stage):
    engine = toy.ToyEngine(toy.limits(slots=2))
    loop = Loop(engine)
    running = [Submit((request(name, 10**6),)) for name in ("b", "c")[: 2 if stage == "queued" else 1]]
    cancelled = Submit((Request("a", tuple(range(60)), SamplingParams(max_tokens=10**6)),))
    reached = {
        "queued": lambda: loop.stats() == Stats(1, 0, 2, 0),
        "mid-prefill": lambda: loop.scheduler.prefilled("a") >= 16,
        "mid-decode": lambda: loop.stats() == Stats(0, 0, 2, 0),
    }[stage]
    channel = Scripted(engine, loop, reached, *running, cancelled)
    serve(channel, loop)
    before, after = channel.calls
    assert after - before <= 1
    assert channel.freed == Stats(0, 0, len(running), 2 - len(running))
    ends = [end for message in channel.sent if isinstance(message, Events) for end in message.finished]
    assert [(end.request_id, end.reason) for end in ends] == [("a", "abort")]
    assert [slot.request.id for slot in engine.slots.values()] == ["b", "c"][: len(running)]
