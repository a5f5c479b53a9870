from itertools import count

import pytest

from ringkv.base.errors import DeadlineExceeded, QueueFull
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.server.options import LoadOptions
from ringkv.server.run.admission import Admission, QueueLimits, sent_by
from ringkv.server.run.metrics import Metrics
from tests.server.conftest import Served
from tests.server.echo import LIMITS

NAMES = count()


def group(answers: int = 1, tokens: int = 10, owner: str = "") -> list[Request]:
    return [Request(f"{next(NAMES)}", (1,) * tokens, SamplingParams(), owner=owner) for _ in range(answers)]


def admission(requests: int = 3, tokens: int = 1000, slots: int = 2, service: float = 0.0) -> Admission:
    return Admission(QueueLimits(requests, tokens), slots, lambda: service, Metrics().of("echo"))


def rejected(it: Admission, reason: str) -> float | None:
    return it.metrics.server.registry.get_sample_value("ringkv_requests_rejected_total", {"reason": reason})


def test_slots_and_queue_are_filled_and_one_request_more_is_refused() -> None:
    it = admission(requests=3, slots=2)
    tickets = [it.admit([group()]) for _ in range(5)]
    assert it.length == 3
    with pytest.raises(QueueFull, match=r"3 requests .* 3 .* 1; .*--max-queue"):
        it.admit([group()])
    assert rejected(it, "queue_requests") == 1
    tickets[0].output(0, is_last=True)
    it.admit([group()])
    assert it.length == 3


def test_every_answer_counts_and_a_call_is_admitted_as_a_whole() -> None:
    it = admission(requests=3, slots=2)
    it.admit([group(), group()])
    with pytest.raises(QueueFull):
        it.admit([group(answers=2), group(answers=2)])
    it.admit([group(answers=3)])
    assert it.length == 3


def test_prompt_tokens_wait_until_the_first_output_and_count_once_for_all_answers() -> None:
    it = admission(requests=50, tokens=100)
    first = it.admit([group(answers=4, tokens=60)])
    assert it.tokens == 60
    with pytest.raises(QueueFull, match=r"60 .* 100 .* 41; .*--max-queue-tokens"):
        it.admit([group(tokens=41)])
    assert rejected(it, "queue_tokens") == 1
    it.admit([group(tokens=40)])
    first.output(2, is_last=False)
    assert it.tokens == 40


def test_a_call_that_alone_exceeds_a_limit_is_admitted_while_nothing_waits() -> None:
    it = admission(requests=3, tokens=100, slots=2)
    large = it.admit([group(answers=9, tokens=500)])
    assert (it.length, it.tokens) == (7, 500)
    with pytest.raises(QueueFull):
        it.admit([group(answers=9, tokens=500)])
    large.close()
    it.admit([group(answers=9, tokens=500)])


def test_an_owner_without_requests_has_a_queue_to_itself() -> None:
    it = admission(requests=3, tokens=100, slots=2)
    large = it.admit([group(answers=128, tokens=500, owner="a")])
    first = it.admit([group(answers=5, tokens=100, owner="b")])
    for owner in ("a", "b"):
        with pytest.raises(QueueFull):
            it.admit([group(owner=owner)])
    for refused in (group(answers=6, owner="c"), group(tokens=101, owner="c")):
        with pytest.raises(QueueFull):
            it.admit([refused])
    first.close()
    it.admit([group(owner="b")])
    large.close()
    it.admit([group(answers=128, owner="c")])


def test_a_queue_of_none_takes_as_many_as_there_are_slots() -> None:
    it = admission(requests=0, slots=2)
    it.admit([group(answers=2)])
    with pytest.raises(QueueFull):
        it.admit([group()])


def test_closing_a_ticket_gives_back_what_has_not_ended() -> None:
    it = admission()
    ticket = it.admit([group(answers=2), group(answers=2)])
    ticket.output(0, is_last=True)
    ticket.output(1, is_last=False)
    ticket.close()
    ticket.close()
    assert (it.length, it.tokens, it._prompts, it._unfinished) == (0, 0, 0, {})


@pytest.mark.parametrize(("service", "seconds"), [(0.0, 1), (0.1, 1), (4.0, 12), (1000.0, 120)])
def test_the_time_to_retry_is_that_of_the_queue_at_the_recent_speed(service: float, seconds: int) -> None:
    it = admission(requests=6, slots=2, service=service)
    it.admit([group(answers=8)])
    with pytest.raises(QueueFull) as caught:
        it.admit([group()])
    assert caught.value.retry_after == seconds  # 6 wait, two at a time


def test_prompts_without_a_first_token_are_waited_for_although_all_have_slots() -> None:
    it = admission(slots=8, tokens=1000, service=16.0)
    tickets = [it.admit([group(tokens=300)]) for _ in range(3)]
    with pytest.raises(QueueFull) as caught:
        it.admit([group(tokens=300)])
    assert caught.value.retry_after == 6  # 3 prompts of 16 s, eight at a time
    for ticket in tickets:
        ticket.output(0, is_last=False)
    assert it.retry_after() == 1


def test_a_late_request_gets_the_time_to_retry_too() -> None:
    it = admission(requests=6, slots=2, service=4.0)
    it.admit([group(answers=8)])
    assert it.too_late(DeadlineExceeded("late")).retry_after == 12
    assert rejected(it, "deadline") == 1


def test_the_default_bounds_follow_from_slots_and_the_longest_prompt() -> None:
    assert LoadOptions().queue(LIMITS) == QueueLimits(64, 16 * LIMITS.longest_prompt)
    assert LoadOptions(5, 7).queue(LIMITS) == QueueLimits(5, 7)


def test_a_timeout_is_counted_from_the_arrival() -> None:
    request = Request("a", (1,), SamplingParams(), timeout=5.0)
    sent = sent_by("key", request, 2.0)
    assert (sent.owner, sent.timeout) == ("key", 3.0)
    assert sent_by("key", request, 6.0).timeout == 0
    assert sent_by("", Request("a", (1,), SamplingParams()), 2.0).timeout is None


@pytest.mark.parametrize(
    ("param", "value"), [("priority", 101), ("priority", -101), ("priority", 0.5), ("timeout", 0), ("timeout", 1e6)]
)
def test_a_priority_or_timeout_outside_its_bounds_is_refused(served: Served, param: str, value: float) -> None:
    got = served.post("completions", prompt="a", **{param: value})
    assert (got.status_code, got.json()["error"]["param"]) == (400, param)


def test_priority_and_timeout_reach_the_engine(fresh: Served) -> None:
    fresh.post("completions", prompt="a", max_tokens=1, priority=-7, timeout=9)
    fresh.post("chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=1, priority=3)
    fresh.post("responses", input="a", max_output_tokens=1, timeout=60)
    first, second, third = fresh.engine.submitted
    assert (first.priority, second.priority, third.priority) == (-7, 3, 0)
    assert first.timeout is not None
    assert third.timeout is not None
    assert 8 < first.timeout <= 9
    assert second.timeout is None
    assert 59 < third.timeout <= 60
