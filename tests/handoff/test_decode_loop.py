"""A decode loop, and a prefill worker that a test plays by hand."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from select import select
from threading import Thread
from typing import Any

import pytest
import toy

from ringkv.base.events import Event, Failed, Finished
from ringkv.base.failure import Failure
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.handoff.address import Address
from ringkv.handoff.decode_loop import DecodeLoop
from ringkv.handoff.handshake import accepted
from ringkv.handoff.messages import Ask, Drop, Prefix, PromptDropped, PromptFailed, Received
from ringkv.wire.handshake import Hello
from ringkv.wire.link import Codec, Link
from tests.handoff.workers import SECRET, TOY_RUNS, decoding, ends, prefilling, run, running, step, tokens, until

PROMPT = (1, 2, 3)


@dataclass
class Played:
    """A prefill worker's end of a link, and the loop at the other end."""

    link: Link
    loop: DecodeLoop
    events: list[Event]

    def ask(self, name: str = "a", max_tokens: int = 4) -> Ask:
        """Let the loop request a prompt."""
        self.events += self.loop.submit(Request(name, PROMPT, SamplingParams(max_tokens=max_tokens)))
        asked = self.receive()
        assert isinstance(asked, Ask)
        return asked

    def start(self, name: str) -> None:
        """Let a request run that samples 40 tokens."""
        asked = self.ask(name, max_tokens=40)
        self.link.send(*prefix(asked))
        assert self.receive() == Received(asked.number)
        until(lambda: self.loop.stats().running == 1, self.step)

    def receive(self) -> Any:
        """Let the loop serve until it sends a message."""
        until(lambda: bool(select([self.link], [], [], 0)[0]), self.step)
        return self.link.receive()

    def step(self) -> None:
        step(self.loop, self.events)

    def serve(self, *names: str) -> dict[str, Finished | Failed]:
        """Let the loop serve until these requests have ended."""
        until(lambda: set(names) <= ends(self.events).keys(), self.step)
        return ends(self.events)


@contextmanager
def played(**shapes: int) -> Iterator[Played]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        links: list[Link] = []
        address = Address(*server.getsockname()[:2])
        engine = toy.ToyEngine(toy.limits(**shapes))
        with accepting(server, links), decoding(engine, address) as loop:
            until(lambda: bool(links))
            yield Played(links[0], loop, [])
            links[0].close()
        assert not engine.slots


@contextmanager
def accepting(server: socket.socket, links: list[Link]) -> Iterator[None]:
    """Accept one decode worker in a thread."""
    thread = Thread(target=lambda: links.append(accepted(server.accept()[0], SECRET, TOY_RUNS, "it")), daemon=True)
    thread.start()
    yield
    thread.join(10)


def prefix(asked: Ask, **changes: Any) -> tuple[Prefix, bytes]:
    """Return the prefix of a prompt, and its raw bytes."""
    layouts = (toy.layout(3, asked.request.kv or KVChoice(), 64),)
    header = Prefix(asked.number, "toy", layouts, 3, {}, 30, 4 * toy.MODULUS)
    return replace(header, **changes), sum(PROMPT).to_bytes(10, "little") + bytes(20 + 4 * toy.MODULUS)


def test_a_prompt_is_requested_with_a_choice_and_without_what_stays_here():
    with played() as one:
        one.events += one.loop.submit(Request("a", PROMPT, SamplingParams(max_tokens=4), forced=(5,), timeout=60.0))
        asked = one.receive().request
        assert (asked.tokens, asked.kv, asked.forced, asked.timeout) == (PROMPT, KVChoice("streaming"), (), None)
        one.loop.cancel("a")


def test_a_prefix_is_acknowledged_and_decoded():
    with played() as one:
        asked = one.ask()
        one.link.send(*prefix(asked, cached=2))
        assert one.receive() == Received(asked.number)
        (end,) = one.serve("a").values()
        assert tokens(one.events) == {"a": toy.answer(PROMPT, 4)}
        assert (end.usage.cached_tokens, end.usage.prompt_tokens) == (2, 3)


def test_a_request_cancelled_before_its_prefix_is_sent_is_dropped_there():
    with played(slots=1) as one:
        asked = one.ask()
        one.loop.cancel("a")
        assert one.receive() == Drop(asked.number)
        one.link.send(PromptDropped(asked.number))
        again = one.ask()  # an id may be used again at once, and the slot too
        one.link.send(*prefix(again))
        one.serve("a")
        assert tokens(one.events)["a"] == toy.answer(PROMPT, 4)


def test_a_request_cancelled_while_its_prefix_arrives_frees_its_slot_and_the_bytes_are_discarded():
    with played(slots=1) as one:
        asked = one.ask()
        header, raw = prefix(asked)
        Link.send_bytes(one.link, Codec().encode(header), raw[:40])  # in this thread, as what follows
        transfer = one.loop._peers._asked["a"][1]
        until(lambda: transfer.state.name == "SENT")
        one.events += one.loop.cancel("a")
        another = one.ask("b")  # takes the slot while the first prefix still arrives
        one.link._end.sendall(raw[40:])
        assert one.receive() == Received(asked.number)
        one.link.send(*prefix(another))
        assert one.receive() == Received(another.number)
        one.serve("b")
        assert tokens(one.events) == {"b": toy.answer(PROMPT, 4)}


def test_a_request_cancelled_before_its_acknowledged_prefix_is_inserted_frees_the_buffer():
    with played(slots=1) as one:
        asked = one.ask()
        transfer = one.loop._peers._asked["a"][1]
        one.link.send(*prefix(asked))
        until(lambda: transfer.state.name == "ACKNOWLEDGED")  # the loop makes no step meanwhile
        one.events += one.loop.cancel("a")
        assert one.receive() == Received(asked.number)
        another = one.ask("b")
        one.link.send(*prefix(another))
        one.serve("b")
        assert tokens(one.events) == {"b": toy.answer(PROMPT, 4)}


def test_a_prompt_that_fails_there_fails_here_alone():
    with played() as one:
        first, second = one.ask("a"), one.ask("b")
        one.link.send(PromptFailed(first.number, Failure("PromptTooLong", "too long", "prompt")))
        one.link.send(*prefix(second))
        failed = one.serve("a", "b")["a"]
        assert failed == Failed("a", "PromptTooLong", "too long", "prompt")
        assert tokens(one.events) == {"b": toy.answer(PROMPT, 4)}


def test_a_prefix_that_cannot_be_restored_fails_its_request_alone():
    with played() as one:
        first, second = one.ask("restore"), one.ask("b")
        one.link.send(*prefix(first))
        one.link.send(*prefix(second))
        assert isinstance(one.serve("restore", "b")["restore"], Failed)
        assert tokens(one.events) == {"b": toy.answer(PROMPT, 4)}


LAYOUT = toy.layout(3, KVChoice("streaming"), 64)
GARBAGE = {
    "entries": {"entries": 31},
    "logits": {"logits": 0},
    "fingerprint": {"fingerprint": "other"},
    "number": {"number": 99},
    "seen": {"seen": 4},
    "cached": {"cached": -1},
    "groups": {"layouts": ()},
    "sampled": {"sampled": {toy.MODULUS: 1}},
    "outside the slot": {"layouts": (LAYOUT._replace(ring=1 << 40),)},
    "before the slot": {"layouts": (LAYOUT._replace(base=64),)},
    "another prompt's": {"layouts": (LAYOUT._replace(prompt=2),)},
    "in pages": {"layouts": (LAYOUT._replace(read=1),)},
    "with reviews": {"layouts": (LAYOUT._replace(review=1),)},
}


@pytest.mark.parametrize("changes", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_the_link_and_fails_its_requests_while_running_ones_go_on(changes: dict[str, Any]):
    with played() as one:
        one.start("runs")
        one.link.send(*prefix(one.ask("b"), **changes))
        failed = one.serve("runs", "b")["b"]
        assert failed.kind == "PrefillUnavailable"
        assert "no valid prefix" in failed.message
        assert tokens(one.events) == {"runs": toy.answer(PROMPT, 40)}


@pytest.mark.parametrize(
    "raw", [b"\xff" * 8, bytes(7) + b"\x02\xc0\xc0", b"GET / HTTP/1.1\r\n\r\n"], ids=["large", "empty", "http"]
)
def test_bytes_that_are_no_message_end_the_link(raw: bytes):
    with played() as one:
        one.ask()
        one.link._end.sendall(raw)
        assert one.serve("a")["a"].kind == "PrefillUnavailable"


def test_a_message_of_the_other_direction_ends_the_link():
    with played() as one:
        one.ask()
        one.link.send(Hello("toy"))
        assert one.serve("a")["a"].kind == "PrefillUnavailable"


def test_a_worker_that_drops_a_prompt_that_was_not_cancelled_is_cut_off_and_the_request_fails():
    with played() as one:
        asked = one.ask()
        one.link.send(PromptDropped(asked.number))
        failed = one.serve("a")["a"]
        assert "was dropped" in failed.message


def test_a_worker_lost_in_the_middle_of_a_prefix_fails_only_its_requests():
    with played() as one:
        one.start("runs")
        header, raw = prefix(one.ask("half"))
        one.link.send(header, raw[:40])
        until(lambda: one.loop._peers._asked["half"][1].state.name == "SENT")
        one.link.close()
        failed = one.serve("runs", "half")["half"]
        assert failed.kind == "PrefillUnavailable"
        assert "was lost" in failed.message
        assert tokens(one.events) == {"runs": toy.answer(PROMPT, 40)}


def test_without_a_worker_requests_fail_at_once_and_are_served_when_it_is_back():
    engine, events = toy.ToyEngine(), list[Event]()
    with prefilling(toy.ToyEngine()) as first:
        at = first.address
        with decoding(engine, at) as loop:
            first.listener.close()
            until(lambda: loop._peers.connected == 0)
            events += run(loop, [[Request("a", PROMPT, SamplingParams(max_tokens=2))]])
            assert ends(events)["a"].kind == "PrefillUnavailable"
            assert str(at) in ends(events)["a"].message
            with prefilling(toy.ToyEngine(), at=at) as second:
                until(lambda: loop._peers.connected == 1)
                events += run(loop, [[Request("b", PROMPT, SamplingParams(max_tokens=4))]], second)
            assert tokens(events) == {"b": toy.answer(PROMPT, 4)}


def test_prompts_go_to_the_worker_with_the_fewest_tokens_and_equal_ones_to_the_same():
    asked = [Request(f"{n}", (n,) * length, SamplingParams(max_tokens=2)) for n, length in enumerate((9, 2, 3, 9))]
    with (
        prefilling(toy.ToyEngine()) as one,
        prefilling(toy.ToyEngine()) as two,
        decoding(toy.ToyEngine(toy.limits(slots=5)), one.address, two.address) as loop,
    ):
        for each in [*asked, replace(asked[0], id="again")]:
            loop.submit(each)
            loop.step()
        until(lambda: [each.worker._inbox.qsize() for each in (one, two)] == [2, 3])
        events = run(loop, [], one, two)
        assert {name: len(found) for name, found in tokens(events).items()} == dict.fromkeys([*"0123", "again"], 2)


def test_a_prefix_that_arrives_when_all_others_have_ended_is_sampled_before_it_is_fed():
    first, second = (Request(name, PROMPT, SamplingParams(max_tokens=2)) for name in "ab")
    with prefilling(toy.ToyEngine()) as one, decoding(toy.ToyEngine(), one.address) as loop:
        events = loop.submit(first)
        until(lambda: running(loop) == 1, lambda: (one.step(), step(loop, events)))
        loop.submit(second)
        until(lambda: "a" in ends(events), lambda: step(loop, events))  # its last token is not fed
        until(lambda: loop._peers.has_news, one.step)
        events += run(loop, [], one)
        assert tokens(events) == dict.fromkeys("ab", toy.answer(PROMPT, 2))


def test_a_deadline_passes_while_a_prompt_is_elsewhere():
    with played() as one:
        one.events += one.loop.submit(Request("a", PROMPT, SamplingParams(), timeout=0.05))
        asked = one.receive()
        assert one.serve("a")["a"].kind == "DeadlineExceeded"
        assert one.receive() == Drop(asked.number)


def test_a_loop_wakes_and_counts_its_prefill_workers_when_one_comes_or_leaves():
    with prefilling(toy.ToyEngine()) as one, decoding(toy.ToyEngine(), one.address) as loop:
        for count in (1, 0):
            assert select(loop.wakers, [], [], 10)[0]
            until(lambda: loop.idle, loop.step)
            assert loop.stats().prefill_workers == count
            one.listener.close()
