import threading
from functools import partial

import pytest

from ringkv.base.events import Event, Finished, KVUsage, Scored, Token, TokenLogprob, Usage
from ringkv.base.messages import EngineMessage, Events, Stats
from ringkv.wire.link import LinkClosed
from ringkv.wire.outbox import Outbox
from ringkv.worker.process import JOINED, send_merged

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
    box = Outbox(partial(send_merged, pipe))
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
    pipe = SlowPipe()
    pipe.opened.set()
    send_merged(pipe, [[Token("a", 1)], [Token("b", 2)], stats, [Token("a", 3)]])  # type: ignore[arg-type]
    assert pipe.sent == [Events.of([Token("a", 1), Token("b", 2)]), stats, Events.of([Token("a", 3)])]


def test_an_engine_waits_once_so_many_messages_wait() -> None:
    pipe = SlowPipe()
    box = Outbox(partial(send_merged, pipe), 3)
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


def test_no_message_grows_with_the_events_that_wait() -> None:
    scored = Scored("a", (TokenLogprob(-1.0, tuple((n, -1.0) for n in range(20))),) * 512)
    pipe = SlowPipe()
    pipe.opened.set()
    send_merged(pipe, [[scored] * 10 for _ in range(20)])  # type: ignore[arg-type]
    sizes = [sum(21 * len(event.logprobs) for event in message) for message in pipe.sent]  # type: ignore[union-attr]
    assert sum(sizes) == 200 * 21 * 512
    assert max(sizes) < JOINED + 21 * 512 + len(scored.logprobs)


def test_an_error_of_the_thread_is_raised_by_put_which_never_waits_for_ever() -> None:
    failed = threading.Event()

    def send(items: object) -> None:
        failed.set()
        raise ValueError("too large")

    box = Outbox(send, 3)
    box.put(1)
    assert failed.wait(10)
    with pytest.raises(ValueError, match="too large"):
        list(map(box.put, range(99)))
    box.close()


def test_after_the_pipe_is_closed_put_does_not_wait_and_close_returns() -> None:
    def send(items: object) -> None:
        raise LinkClosed

    box = Outbox(send, 3)
    for _ in range(99):
        box.put([Token("a", 1)])
    box.close()
