from random import Random

import toy

from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def request(name: str, timeout: float | None = None) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=50, ignore_eos=True), timeout=timeout)


def test_requests_end_at_their_deadlines_the_earliest_first() -> None:
    random, clock, when = Random(1), Clock(), dict[str, float]()
    loop = Loop(toy.ToyEngine(toy.limits(slots=1)), clock=clock)
    for n in range(100):
        when[f"{n}"] = clock.seconds + (timeout := random.randint(1, 40))
        loop.submit(request(f"{n}", timeout))
        if random.random() < 0.4:
            gone = random.choice(list(when))
            del when[gone]
            loop.cancel(gone)
    while when:
        clock.seconds += 4
        ended = [event.request_id for event in loop.step() if isinstance(event, Finished | Failed)]
        due = [name for name, at in when.items() if at <= clock.seconds]
        assert ended == sorted(due, key=lambda name: (when[name], name))
        when = {name: at for name, at in when.items() if name not in ended}


def test_a_request_without_a_token_at_its_deadline_fails() -> None:
    clock = Clock()
    loop = Loop(toy.ToyEngine(toy.limits(slots=1)), clock=clock)
    loop.submit(request("runs"))
    loop.submit(request("waits", timeout=2))
    events = [event for _ in range(6) for event in loop.step()]
    clock.seconds += 2
    ended = loop.step()
    assert not any(event.request_id == "waits" for event in events)
    failed = [event for event in ended if isinstance(event, Failed)]
    assert [(event.request_id, event.kind) for event in failed] == [("waits", "DeadlineExceeded")]
    assert "2 s" in failed[0].message
    assert loop.stats().waiting == 0


def test_a_running_request_ends_at_its_deadline_with_its_tokens() -> None:
    clock, events = Clock(), list[Event]()
    loop = Loop(toy.ToyEngine(), clock=clock)
    loop.submit(request("a", timeout=1.5))
    while sum(isinstance(event, Token) for event in events) < 3:
        events += loop.step()
    clock.seconds += 1.4
    assert not any(isinstance(event, Finished) for event in loop.step())
    sampled = loop.scheduler.usage("a")
    clock.seconds += 0.2
    (end,) = loop.step()
    assert isinstance(end, Finished)
    assert sampled is not None
    assert (end.reason, end.usage.completion_tokens) == ("abort", sampled.completion_tokens)
    assert loop.idle
    assert loop.stats().free_slots == 2


def test_a_deadline_is_forgotten_when_its_request_ends() -> None:
    clock = Clock()
    loop = Loop(toy.ToyEngine(), clock=clock)
    loop.submit(request("a", timeout=1))
    loop.cancel("a")
    loop.submit(request("a"))
    clock.seconds += 5
    assert not any(isinstance(event, Finished | Failed) for event in loop.step())
