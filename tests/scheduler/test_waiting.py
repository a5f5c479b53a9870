import time
from random import Random

from toy import limits

from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.job import Job, PendingPrompt
from ringkv.scheduler.waiting import Shares, WaitingPrompts


def prompt(arrival: int, owner: str = "", priority: int = 0) -> PendingPrompt:
    made = PendingPrompt(owner=owner, priority=priority, arrival=arrival)
    request = Request(f"{arrival}", (1,), SamplingParams(), owner=owner, priority=priority)
    made.jobs.append(Job(request, KVChoice(), limits(), made))
    return made


def waiting(*prompts: PendingPrompt) -> WaitingPrompts:
    queue = WaitingPrompts()
    for one in prompts:
        queue.update(one)
    return queue


def test_a_lower_priority_number_comes_first_whoever_has_slots() -> None:
    late, early = prompt(1, "busy", priority=-1), prompt(0, "idle")
    assert waiting(early, late).first({"busy": 5}, Shares()) is late


def test_the_owner_with_the_fewest_slots_comes_first() -> None:
    first, second = prompt(0, "a"), prompt(1, "b")
    queue = waiting(first, second)
    assert queue.first({"a": 2, "b": 1}, Shares()) is second
    assert queue.first({"a": 1, "b": 1}, Shares()) is first


def test_with_equal_slots_the_owner_who_was_served_fewer_tokens_comes_first() -> None:
    shares = Shares()
    shares.serve("a", 10)
    assert waiting(prompt(0, "a"), last := prompt(1, "b")).first({}, shares) is last


def test_a_held_prompt_keeps_its_place() -> None:
    first, second = prompt(0), prompt(1)
    queue = waiting(first, second)
    first.jobs[0].is_held = True
    queue.update(first)
    assert queue.first({}, Shares()) is second
    first.jobs[0].is_held = False
    queue.update(first)
    assert queue.first({}, Shares()) is first


def test_the_order_equals_that_of_sorting_all_that_wait() -> None:
    random = Random(3)
    prompts = [prompt(n, random.choice("abc"), random.randint(-2, 2)) for n in range(200)]
    queue, there = WaitingPrompts(), []
    for one in random.sample(prompts, len(prompts)):
        queue.update(one)
        there.append(one)
        if random.random() < 0.3:
            queue.discard(there.pop(random.randrange(len(there))))
    slots = {"a": 1, "c": 3}
    while there:
        best = min(there, key=lambda one: (one.priority, slots.get(one.owner, 0), one.arrival))
        assert queue.first(slots, Shares()) is best
        queue.discard(best)
        there.remove(best)
    assert not queue
    assert queue.first(slots, Shares()) is None


def test_ten_thousand_waiting_prompts_are_taken_in_microseconds_each() -> None:
    prompts = [prompt(n, f"key {n % 10}") for n in range(10_000)]
    queue, shares = waiting(*prompts), Shares()
    started = time.perf_counter()
    for _ in range(1000):
        taken = queue.first({}, shares)
        assert taken is not None
        queue.discard(taken)
    assert time.perf_counter() - started < 0.5  # 20 ms without other load


def test_old_tokens_count_half_after_the_half_life() -> None:
    shares = Shares(half_life=100)
    shares.serve("a", 60)
    shares.serve("b", 39)
    assert (shares.of("a"), shares.of("b"), shares.of("new")) == (60, 39, 0)
    shares.serve("b", 1)
    assert (shares.of("a"), shares.of("b")) == (30, 20)
    shares.serve("b", 1000)
    assert shares.of("a") == 0
