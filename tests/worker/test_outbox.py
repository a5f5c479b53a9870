import threading
from contextlib import suppress

import pytest

from ringkv.base.events import Event, Finished, KVUsage, Scored, Token, Usage
from ringkv.base.messages import EngineMessage, Events, Stats
from ringkv.worker import outbox
from ringkv.worker.channel import ChannelClosed
from ringkv.worker.outbox import Outbox, merged

USAGE = Usage(1, 1, KVUsage("full", 1, 1, 0, 0, 1))


class SlowPipe:
    """A pipe that takes its first message only once it is opened."""

    def __init__(self) -> None:
        self.sent: list[EngineMessage] = []
        self.reached, self.opened = threading.Event(), threading.Event()

    def send(self, message: EngineMessage) -> None:
        self.reached.set()
        assert self.opened.wait(10)
        self.sent.append(message)


def steps(name: str, count: int) -> list[list[Event]]:
    """Return the events of a request, step by step."""
    tokens = [[Token(name, number)] for number in range(count)]
    return [[Scored(name, ())], *tokens, [Token(name, count, is_last=True), Finished(name, "length", USAGE)]]


def test_events_that_wait_for_the_pipe_are_sent_as_one_message_in_their_order() -> None:
    pipe = SlowPipe()
    box = Outbox(pipe)
    first, *rest = steps("a", 5)
    box.put(first)
    assert pipe.reached.wait(10)
    for events in rest:
        box.put(events)  # does not wait, although the pipe takes nothing
    pipe.opened.set()
    box.close()
    assert len(pipe.sent) == 2
    assert [event for message in pipe.sent for event in message] == [
        event for events in (first, *rest) for event in events
    ]  # type: ignore[union-attr]


def test_events_are_not_merged_across_another_message() -> None:
    stats = Stats(0, 0, 1, 1)
    got = list(merged([[Token("a", 1)], [Token("b", 2)], stats, [Token("a", 3)], None]))
    assert got == [Events.of([Token("a", 1), Token("b", 2)]), stats, Events.of([Token("a", 3)])]


def test_an_engine_waits_once_so_many_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    pipe = SlowPipe()
    box = Outbox(pipe)
    box.put(Stats(0, 0, 0, 1))
    assert pipe.reached.wait(10)
    engine = threading.Thread(target=lambda: [box.put([Token("a", number)]) for number in range(4)], daemon=True)
    engine.start()
    engine.join(0.2)
    assert engine.is_alive()
    pipe.opened.set()
    engine.join(10)
    assert not engine.is_alive()
    box.close()
    assert [event.token for message in pipe.sent[1:] for event in message] == [0, 1, 2, 3]  # type: ignore[union-attr]


def test_after_the_pipe_is_closed_put_raises_and_close_returns() -> None:
    closed = threading.Event()

    class Closed:
        def send(self, message: EngineMessage) -> None:
            closed.set()
            raise ChannelClosed

    box = Outbox(Closed())
    box.put([Token("a", 1)])
    assert closed.wait(10)
    for _ in range(2 * outbox.MOST_WAITING):  # none waits for ever
        with suppress(ChannelClosed):
            box.put([Token("a", 1)])
    with pytest.raises(ChannelClosed):
        box.put([Token("a", 1)])
    box.close()
