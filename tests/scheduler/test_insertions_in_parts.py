"""An insertion that takes longer than `max_step` is done in parts, between decode steps of running requests."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from ringkv.base.events import Event, Failed, Finished
from ringkv.base.kv import KVChoice
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop
from tests import toy
from tests.scheduler.test_packed_passes import Timed, answers, limits, prompt, serve

PART, PARTS, BOUND = 0.4, 10, 1.0


@dataclass
class Selecting(Timed):
    """Selecting takes 10 parts of 0.4 s for prompts of 100 tokens. Notes what happens in their midst."""

    midst: list[str] = field(default_factory=list)

    def select(self, lane: int, choice: KVChoice, slot: int | None = None) -> Iterator[None]:
        staged = self.lanes[lane].request
        if len(staged.tokens) != 100:
            return
        try:
            for part in range(PARTS):
                self.clock += PART
                self.midst.append(f"{staged.id} {part}")
                yield
            self.midst.append(f"{staged.id} selected")
        finally:
            self.midst.append(f"{staged.id} ends")

    def prefill(self, work, feed=False):
        self.midst += [f"{chunk.request.id} is prefilled" for chunk in work]
        return super().prefill(work, feed)


def started(**changes: float) -> tuple[Selecting, Loop]:
    engine = Selecting(limits(max_step=BOUND, **changes))
    return engine, Loop(engine, clock=lambda: engine.clock)


def begun(loop: Loop, engine: Selecting, part: str) -> list[Event]:
    """Step until so much of a selection is done."""
    events: list[Event] = []
    while part not in engine.midst:
        events += loop.step()
    return events


@pytest.mark.parametrize("rides", [True, False])
def test_running_requests_get_tokens_between_the_parts_and_answers_are_the_same(rides: bool) -> None:
    engine, loop = started(rides=rides)
    loop.submit(prompt("a", [5], max_tokens=40))
    events = [event for _ in range(12) for event in loop.step()]
    loop.submit(prompt("b", range(100)))
    loop.submit(prompt("c", range(100, 200)))
    times = []
    while not loop.idle:
        new = loop.step()
        events += new
        if "a" in answers(new):
            times.append(engine.clock)
    # A pass of at most `max_step`, then parts until `max_step` is over, and the insertion of 50 ms.
    assert max(after - before for before, after in pairwise(times)) <= 2 * BOUND + PART + 0.1
    assert answers(events) == {
        "a": toy.answer([5], 40), "b": toy.answer(range(100), 5), "c": toy.answer(range(100, 200), 5)
    }  # fmt: skip
    first = engine.midst.index("b 0")
    assert engine.midst[first : first + 12] == [*(f"b {part}" for part in range(PARTS)), "b selected", "b ends"]


def test_parts_follow_each_other_if_nothing_runs() -> None:
    engine, loop = started()
    loop.submit(prompt("b", range(100)))
    events = serve(loop)
    assert answers(events) == {"b": toy.answer(range(100), 5)}
    assert engine.clock == pytest.approx(100 * 0.01 + PARTS * PART + 0.05 + 4 * 0.01)


def test_a_request_may_be_cancelled_between_two_parts() -> None:
    engine, loop = started()
    loop.submit(prompt("a", [5], max_tokens=30))
    loop.submit(prompt("b", range(100)))
    begun(loop, engine, "b 2")
    assert "b 9" not in engine.midst
    assert [type(event) for event in loop.cancel("b")] == [Finished]
    assert engine.midst[-1] == "b ends"
    assert "b selected" not in engine.midst
    loop.submit(prompt("c", range(100, 200)))
    assert answers(serve(loop))["c"] == toy.answer(range(100, 200), 5)
    assert len(engine.slots) == 0


def test_a_timeout_is_served_between_two_parts() -> None:
    engine, loop = started()
    request = prompt("b", range(100), timeout=2.5)
    assert request.sampling == SamplingParams(max_tokens=5, ignore_eos=True)
    loop.submit(request)
    events = serve(loop)
    assert [type(event) for event in events] == [Failed]
    assert engine.clock < 100 * 0.01 + PARTS * PART


def test_an_insertion_goes_on_although_an_earlier_prompt_waits_for_a_slot() -> None:
    """The earlier prompt has answers without a slot; the request whose insertion has begun has its slot."""
    _, loop = started(slots=2)
    many = [prompt(f"a{answer}", [5], max_tokens=25) for answer in range(3)]
    loop.submit(*many)
    loop.submit(prompt("b", range(100)))
    events = serve(loop)
    assert answers(events) == {
        **{each.id: toy.answer([5], 25) for each in many}, "b": toy.answer(range(100), 5)
    }  # fmt: skip
