"""A prefill worker, and decode workers that a test plays by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from typing import Any

import pytest
import toy

from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.handoff.handshake import dialled
from ringkv.handoff.messages import (
    Ask,
    Drop,
    Prefix,
    PromptDropped,
    PromptScored,
    Received,
)
from ringkv.wire.link import Link, LinkClosed
from tests.handoff.workers import SECRET, TOY, TOY_RUNS, Prefilling, prefilling, until


@contextmanager
def asker(one: Prefilling) -> Iterator[Link]:
    link = dialled(one.address, SECRET, TOY_RUNS)
    try:
        yield link
    finally:
        link.close()


def ask(number: int, *tokens: int, name: str = "a", **sampling) -> Ask:
    return Ask(number, Request(name, tokens or (1, 2, 3), SamplingParams(**sampling)))


def arrived(one: Prefilling, messages: int) -> None:
    """Wait until so many messages wait for the worker's next step."""
    until(lambda: one.worker._inbox.qsize() == messages)


def serve(one: Prefilling, requests: int) -> None:
    """Let the worker serve until it has so many requests left."""
    until(lambda: one.worker.requests == requests, one.step)


def reply(one: Prefilling, link: Link) -> Any:
    """Let the worker serve until it replies, and return its message."""
    until(lambda: bool(select([link], [], [], 0)[0]), one.step)
    return link.receive()


def taken(one: Prefilling, link: Link) -> tuple[Prefix, bytes]:
    """Receive a prefix and its raw bytes, without an acknowledgement."""
    header = reply(one, link)
    assert isinstance(header, Prefix)
    raw = bytearray(header.entries + header.logits)
    link.receive_into(memoryview(raw))
    return header, bytes(raw)


def acknowledge(one: Prefilling, link: Link, number: int, left: int = 0) -> None:
    """Acknowledge a prefix. The worker has `left` requests then."""
    link.send(Received(number))
    serve(one, left)


def test_a_prefix_has_as_many_bytes_as_its_header_and_the_formula_say():
    with prefilling(toy.ToyEngine()) as one, asker(one) as link:
        for number, length in enumerate((3, 70)):
            link.send(ask(number, *range(length)))
            header, raw = taken(one, link)
            assert (header.number, header.seen, header.fingerprint) == (number, length, "toy")
            assert len(raw) == min(length, 64) * 10 + 4 * toy.MODULUS
            assert header.entries == TOY.entries(header.layouts, length)
            acknowledge(one, link, number)


def test_a_slot_is_free_only_once_its_prefix_is_acknowledged():
    engine = toy.ToyEngine()
    with prefilling(engine) as one, asker(one) as link:
        for number in range(3):
            link.send(ask(number, number + 1))
        until(lambda: len(engine.slots) == 2, one.step)
        assert taken(one, link)[0].number == 0
        for _ in range(20):
            one.step()
        assert len(engine.slots) == 2  # the second prefix waits in its slot, the third prompt for a slot
        for number in range(2):
            acknowledge(one, link, number, left=2 - number)
            assert taken(one, link)[0].number == number + 1
        acknowledge(one, link, 2)
        assert not engine.slots


def test_a_prompt_is_dropped_before_it_is_sent_and_not_after():
    engine = toy.ToyEngine()
    with prefilling(engine) as one, asker(one) as link:
        link.send(ask(0, *range(500)))
        link.send(Drop(0))
        arrived(one, 2)
        assert reply(one, link) == PromptDropped(0)
        link.send(ask(1))
        link.send(ask(2, 5))
        assert taken(one, link)[0].number == 1
        until(lambda: len(engine.slots) == 2, one.step)
        link.send(Drop(1))  # is sent already
        link.send(Drop(2))  # waits in its slot
        assert reply(one, link) == PromptDropped(2)
        assert len(engine.slots) == 1
        acknowledge(one, link, 1)
        assert not engine.slots


def test_failures_and_log_probabilities_of_prompts_are_reported():
    with prefilling(toy.ToyEngine()) as one, asker(one) as link:
        link.send(ask(0, *range(12), prompt_logprobs=1))
        scored = [reply(one, link), reply(one, link)]
        assert [type(part) for part in scored] == [PromptScored, PromptScored]
        assert [found.logprob for part in scored for found in part.logprobs] == [
            -float(token) for token in range(1, 12)
        ]
        taken(one, link)
        acknowledge(one, link, 0)
        link.send(ask(1, *[1] * 600))
        failed = reply(one, link)
        assert (failed.number, failed.failure.kind, failed.failure.param) == (1, "PromptTooLong", "prompt")
        assert one.worker.requests == 0


def test_a_prompts_timeout_is_the_decode_workers_concern():
    engine, now = toy.ToyEngine(), [0.0]
    with prefilling(engine, clock=lambda: now[0]) as one, asker(one) as link:
        for number in range(2):
            link.send(Ask(number, Request("a", (1, number), SamplingParams(), timeout=1.0)))
        assert taken(one, link)[0].number == 0
        until(lambda: len(engine.slots) == 2, one.step)
        now[0] = 9.0  # one prefix is sent, another waits in its slot
        for _ in range(3):
            one.step()
        acknowledge(one, link, 0, left=1)
        assert taken(one, link)[0].number == 1
        acknowledge(one, link, 1)
        assert not engine.slots


@pytest.mark.parametrize(
    "bad", [(ask(7), ask(7)), (Received(0),), (ask(0), Received(0))], ids=["twice", "none", "unsent"]
)
def test_a_peer_that_breaks_the_protocol_is_cut_off_and_another_is_served(bad: tuple[object, ...]):
    engine = toy.ToyEngine()
    with prefilling(engine) as one, asker(one) as wrong, asker(one) as right:
        for message in bad:
            wrong.send(message)
        arrived(one, len(bad))
        with pytest.raises(LinkClosed):
            reply(one, wrong)
        right.send(ask(0, 9))
        assert taken(one, right)[0].seen == 1
        acknowledge(one, right, 0)
        assert not engine.slots


def test_a_lost_peer_frees_its_slots_and_lanes_for_others():
    engine = toy.ToyEngine()
    with prefilling(engine) as one, asker(one) as right:
        with asker(one) as lost:
            for number in range(5):
                lost.send(ask(number, number + 1))
            until(lambda: len(engine.slots) == 2, one.step)
        serve(one, 0)
        assert not engine.slots
        right.send(ask(0))
        taken(one, right)


def test_a_peer_that_does_not_acknowledge_is_cut_off_after_a_minute():
    engine, now = toy.ToyEngine(), [0.0]
    with prefilling(engine, clock=lambda: now[0]) as one, asker(one) as link:
        link.send(ask(0))
        taken(one, link)
        now[0] = 59.0
        one.step()
        assert engine.slots
        now[0] = 61.0
        with pytest.raises(LinkClosed):
            reply(one, link)
        serve(one, 0)
        assert not engine.slots
