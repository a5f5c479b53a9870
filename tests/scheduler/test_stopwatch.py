"""The engine's times, with an engine whose every call takes a known time on a clock that only it advances."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import toy

from ringkv.base.engine import PrefillChunk
from ringkv.base.events import Finished, TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop


@dataclass
class Timed(toy.ToyEngine):
    """A chunk takes 1 s, compression 0.5 s, sampling 0.0625 s and a forward pass 0.125 s."""

    clock: float = 0.0

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        self.clock += 1
        return super().prefill(work, feed)

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        self.clock += 0.5
        return super().compress(lane, choice)

    def sample(self, forced=None, allowed=None) -> toy.ToyStep:  # type: ignore[no-untyped-def]
        self.clock += 0.0625
        return super().sample(forced, allowed)

    def forward(self, drafts=None):  # type: ignore[no-untyped-def]
        self.clock += 0.125
        return super().forward(drafts)


def request(name: str, prompt: int = 8, max_tokens: int = 3, salt: str = "") -> Request:
    """Prompts with different salts share no prefill."""
    return Request(name, (1,) * prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), salt=salt)


def run(engine: Timed, *prompts: tuple[Request, ...]) -> Loop:
    loop = Loop(engine, clock=lambda: engine.clock)
    for together in prompts:
        loop.submit(*together)
    while not loop.idle:
        loop.step()
    return loop


def test_a_request_alone_has_the_times_of_its_calls() -> None:
    metrics = run(Timed(), (request("a", prompt=20),)).metrics()
    assert (metrics.queue.count, metrics.queue.total) == (1, 0)
    assert (metrics.prefill.count, metrics.prefill.total) == (1, 3)  # chunks of 8, 8 and 4 tokens
    assert (metrics.compress.count, metrics.compress.total) == (1, 0.5)
    assert (metrics.step.count, metrics.step.total) == (3, 0.0625 + 2 * (0.125 + 0.0625))
    assert metrics.service == 3 + 0.5 + metrics.step.total


def test_a_request_queues_until_the_one_before_it_ends() -> None:
    engine = Timed(toy.limits(slots=1))
    metrics = run(engine, (request("a", max_tokens=1),), (request("b", max_tokens=1, salt="b"),)).metrics()
    one = 1 + 0.5 + 0.0625
    assert (metrics.queue.count, metrics.queue.total) == (2, one)
    assert metrics.service == one
    assert engine.clock == 2 * one


def test_answers_to_one_prompt_count_its_prefill_once_and_each_its_compression() -> None:
    metrics = run(Timed(toy.limits(slots=3)), tuple(request(name) for name in "abc")).metrics()
    assert [metrics.prefill.count, metrics.queue.count, metrics.compress.count] == [1, 3, 3]


def test_requests_with_logits_that_are_not_finite_are_counted() -> None:
    assert run(Timed(), (request("nan1"),), (request("b"),), (request("nan2"),)).metrics().not_finite == 2


def test_recent_requests_count_more_in_the_service_time() -> None:
    engine = Timed(toy.limits(slots=1))
    short = run(engine, (request("a", max_tokens=1),)).metrics().service
    requests = (request(f"{n}", max_tokens=1 + 2 * (n > 0), salt=f"{n}") for n in range(60))
    loop = run(Timed(toy.limits(slots=1)), *((one,) for one in requests))
    long = 1.5 + 0.0625 + 2 * 0.1875
    assert short == 1.5625
    assert loop.metrics().service == pytest.approx(long, rel=0.01)
    assert loop.metrics().service < long


def test_a_finished_request_has_its_time_in_the_queue_and_that_of_its_prefill() -> None:
    engine = Timed(toy.limits(slots=1))
    loop = Loop(engine, clock=lambda: engine.clock)
    loop.submit(request("a", prompt=20, max_tokens=1))
    loop.submit(request("b", max_tokens=1), request("c", max_tokens=1))
    events = []
    while not loop.idle:
        events += loop.step()
    found = {e.request_id: (e.usage.queue_seconds, e.usage.prefill_seconds) for e in events if isinstance(e, Finished)}
    a, b = 3 + 0.5 + 0.0625, 1 + 0.5 + 0.0625  # "c" begins when "b" has ended, with the same prefill
    assert found == {"a": (0, 3), "b": (a, 1), "c": (a + b - 1, 1)}
