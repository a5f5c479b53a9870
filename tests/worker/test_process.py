import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, get_context
from threading import Thread

import psutil
import pytest
import toy

from ringkv.base.events import Finished, Token
from ringkv.base.messages import Cancel, Events, Fatal, Progress, Ready, Shutdown, Stats, Submit
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop
from ringkv.worker.channel import Channel, ChannelClosed
from ringkv.worker.process import main, serve


def request(name: str, max_tokens: int = 3) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=max_tokens))


@contextmanager
def served() -> Iterator[Channel]:
    """Yield our end of a channel to a toy engine in a thread. The thread must end with the block."""
    ours, theirs = Pipe()
    ended = []

    def run() -> None:
        try:
            serve(Channel(theirs), Loop(toy.ToyEngine()))
            ended.append("shut down")
        except ChannelClosed:
            ended.append("channel closed")

    thread = Thread(target=run, daemon=True)
    thread.start()
    yield Channel(ours)
    thread.join(10)
    assert ended == ["shut down"]


def until_idle(channel: Channel) -> list:
    """Return all messages up to the stats of an idle engine."""
    messages = []
    while not messages or messages[-1] != Stats(0, 0, 0, 2):
        messages.append(channel.receive())
    return messages


@contextmanager
def spawned(builder: str) -> Iterator[tuple[Channel, psutil.Process]]:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=main, args=(theirs, toy.config(), builder))
    process.start()
    theirs.close()
    try:
        yield Channel(ours), psutil.Process(process.pid)
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


def test_the_process_ignores_an_interrupt():
    with spawned("toy:build") as (channel, process):
        while not isinstance(channel.receive(), Ready):
            pass
        process.send_signal(signal.SIGINT)
        channel.send(Submit((request("a"),)))
        while not isinstance(message := channel.receive(), Events) or not message.finished:
            pass
        channel.send(Shutdown())
        assert process.wait(10) == 0


PARENT = """
import os, sys
from multiprocessing import get_context
import toy
from ringkv.worker.process import main

if __name__ == "__main__":
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=main, args=(theirs, toy.config(), "toy:build_forever"))
    process.start()
    ours.recv_bytes()  # progress: the build has started
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
