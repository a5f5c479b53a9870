"""Random loads of several owners: what must hold after every step, whatever is submitted, cancelled or late.

Each scheduler step is followed by a check of its slots and lanes: each is free or in one hand.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

import pytest
import toy

from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.job import PendingPrompt
from ringkv.scheduler.loop import Loop
from ringkv.scheduler.scheduler import Scheduler
from ringkv.scheduler.waiting import Shares

OWNERS = ("", "a", "b", "c")


@dataclass
class Load:
    """A loop under a random load. `clock` advances by one with each step."""

    seed: int
    clock: float = 0.0
    submitted: dict[str, Request] = field(default_factory=dict)
    ends: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.random = random = Random(self.seed)
        slots, lanes = random.randint(1, 4), random.randint(1, 3)
        self.engine = toy.ToyEngine(toy.limits(slots=slots, lanes=lanes, chunk=random.choice([2, 8])))
        self.scheduler = Scheduler(self.engine.limits, self.engine.default_kv)
        self.loop = Loop(self.engine, self.scheduler, clock=lambda: self.clock)
        self._first = self.scheduler._waiting.first
        self.scheduler._waiting.first = self.first

    def first(
        self, slots: Mapping[str, int], shares: Shares, ready: Callable[[PendingPrompt], bool]
    ) -> PendingPrompt | None:
        """Check whose turn it is against all prompts that wait, so that none is passed over."""
        jobs = self.scheduler._jobs.values()
        with_lane = Counter(job.request.owner for job in jobs if job.prompt.lane is not None)
        waiting = {job.prompt for job in jobs if job.prompt.lane is None}
        expected = min(
            waiting,
            key=lambda one: (one.priority, with_lane[one.owner], shares.of(one.owner), one.arrival),
            default=None,
        )
        found = self._first(slots, shares, ready)
        assert found is expected
        return found

    def submit(self) -> None:
        """Submit one prompt of a random owner, with one to three answers."""
        random = self.random
        tokens = tuple(random.choices(range(toy.MODULUS), k=random.randint(1, 12)))
        owner, priority = random.choice(OWNERS), random.choice([0, 0, 0, -1, 5])
        kinds = ("ok", "ok", "ok", "nan", "insert", "prefill")
        together = [
            Request(
                f"{random.choice(kinds)}{len(self.submitted)}-{answer}",
                tokens,
                SamplingParams(max_tokens=random.randint(1, 12)),
                owner=owner,
                priority=priority,
                timeout=random.choice([None, None, random.uniform(0, 80)]),
            )
            for answer in range(random.choice([1, 1, 1, 3]))
        ]
        self.submitted |= {one.id: one for one in together}
        self.take(self.loop.submit(*together))

    def cancel(self) -> None:
        self.take(self.loop.cancel(self.random.choice(list(self.submitted))))

    def step(self) -> None:
        self.clock += 1
        self.take(self.loop.step())

    def take(self, events: list[Event]) -> None:
        for event in events:
            assert not self.ends[event.request_id], "an event follows a request's last"
            if isinstance(event, Finished | Failed):
                self.ends[event.request_id].append(event)

    def check(self) -> None:
        """Check that each slot and each lane is free or has exactly one owner, and that every request is somewhere."""
        it = self.scheduler
        prompts = [*it._staged, *it._shared]
        reserved = [prompt.jobs[0].slot for prompt in it._staged]
        assert sorted([*it._running, *reserved, *it._free_slots]) == list(range(self.engine.limits.slots))
        assert sorted([*(prompt.lane for prompt in prompts), *it._lanes.free]) == list(range(self.engine.limits.lanes))
        assert set(self.engine.slots) == set(it._running), "the engine has another slot filled than the scheduler"
        assert {name for name in self.submitted if not self.ends[name]} == set(it._jobs)
        stats = it.stats()
        assert stats.running + len(reserved) + stats.free_slots == self.engine.limits.slots
        assert stats.free_lanes == len(it._lanes.free)


@pytest.mark.parametrize("seed", range(150))
def test_no_slot_or_lane_is_in_two_hands_and_none_is_lost(seed: int) -> None:
    load = Load(seed)
    for _ in range(120):
        load.random.choices(
            [load.submit, load.cancel, load.step], [3 if load.submitted else 1, bool(load.submitted), 9]
        )[0]()
        load.check()
    for _ in range(5000):
        if load.loop.idle:
            break
        load.step()
        load.check()
    assert load.loop.idle
    assert all(len(load.ends[name]) == 1 for name in load.submitted)
    stats = load.loop.stats()
    assert (stats.free_slots, stats.free_lanes) == (load.engine.limits.slots, load.engine.limits.lanes)
    assert load.loop.metrics().queue.count <= len(load.submitted)


def begun(engine: toy.ToyEngine) -> list[str]:
    return [line.request_id for line in engine.log if isinstance(line, toy.Begun)]


def request(name: str, owner: str, priority: int = 0, max_tokens: int = 4) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(name, (1, 2, 3), sampling, owner=owner, priority=priority, salt=name)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_one_request_does_not_wait_for_another_owners_thousand(slots: int) -> None:
    engine = toy.ToyEngine(toy.limits(slots=slots))
    loop = Loop(engine)
    for n in range(1000):
        loop.submit(request(f"many {n}", "many"))
    for _ in range(40):
        loop.step()
    before = len(begun(engine))
    loop.submit(request("one", "one"))
    while "one" not in begun(engine):
        loop.step()
    assert len(begun(engine)) <= before + 1 + slots  # those that had a slot, and at most one lane
    assert begun(engine)[:before] == [f"many {n}" for n in range(before)]


@pytest.mark.parametrize("priority", [0, -10])
@pytest.mark.parametrize("slots", [1, 4])
def test_one_request_does_not_wait_for_another_owners_many_answers(slots: int, priority: int) -> None:
    engine = toy.ToyEngine(toy.limits(slots=slots, lanes=2))
    loop = Loop(engine)
    first, *others = [request("many", "many"), *(replace(request("many", "many"), id=f"many {n}") for n in range(64))]
    loop.submit(first, *others)
    tokens, before = list[str](), 0
    while "one" not in tokens:
        if len(tokens) > 40 and not before:
            before = len(tokens)
            loop.submit(request("one", "one", priority))
        tokens += [event.request_id for event in loop.step() if isinstance(event, Token)]
    assert len(tokens) - before <= 4 * (slots + 1) + 1  # the answers that had a slot end, and the one of a lane


def test_owners_with_endless_work_get_equal_shares_of_the_slots() -> None:
    engine = toy.ToyEngine(toy.limits(slots=3))
    loop = Loop(engine)
    for owner, count in (("a", 300), ("b", 60), ("c", 60)):
        for n in range(count):
            loop.submit(request(f"{owner} {n}", owner))
    while len(begun(engine)) < 150:
        loop.step()
    shares = Counter(name.partition(" ")[0] for name in begun(engine)[:150])
    assert max(shares.values()) - min(shares.values()) <= 3


def test_an_owner_who_is_served_long_answers_waits_for_one_with_short_ones() -> None:
    engine = toy.ToyEngine(toy.limits(slots=1))
    loop = Loop(engine)
    for n in range(50):
        loop.submit(request(f"long {n}", "long", max_tokens=40))
        loop.submit(request(f"short {n}", "short", max_tokens=4))
    while len(begun(engine)) < 40:
        loop.step()
    shares = Counter(name.partition(" ")[0] for name in begun(engine))
    # 3 prompt tokens and the answer: 43 to 7 tokens.
    assert 4 <= shares["short"] / shares["long"] <= 8


def test_priority_orders_all_owners_and_arrival_orders_equals() -> None:
    engine = toy.ToyEngine(toy.limits(slots=1))
    loop = Loop(engine)
    for name, priority in (("late", 7), ("first", 0), ("second", 0), ("urgent", -3)):
        loop.submit(request(name, "key", priority))
    while not loop.idle:
        loop.step()
    assert begun(engine) == ["urgent", "first", "second", "late"]
