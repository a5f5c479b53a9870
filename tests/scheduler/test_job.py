from typing import Any

import pytest
import toy

from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.job import Job, PendingPrompt

FULL = KVChoice("full")
RING = KVChoice("streaming")


def running(prompt: int, choice: KVChoice = RING, eos: tuple[int, ...] = (), limits=None, **sampling) -> Job:
    request = Request("r", (1,) * prompt, SamplingParams(**sampling), choice, eos)
    limits = limits or toy.limits()
    return Job(request, choice, limits, PendingPrompt(), slot=0, layouts=(toy.layout(prompt, choice, limits.capacity),))


def reasons(job: Job, tokens: list[int]) -> list[str | None]:
    return [job.take(token) for token in tokens]


def test_end_of_sequence_stops():
    assert reasons(running(3, eos=(9, 10)), [1, 2, 10]) == [None, None, "stop"]


def test_end_of_sequence_can_be_ignored_but_not_stop_ids():
    job = running(3, eos=(9,), ignore_eos=True, stop_token_ids=(8,))
    assert reasons(job, [9, 9, 8]) == [None, None, "stop"]


def test_nothing_stops_before_min_tokens_are_out():
    assert reasons(running(3, eos=(9,), min_tokens=2, stop_token_ids=(8,)), [9, 8, 9]) == [None, None, "stop"]


def test_max_tokens_ends_with_length():
    assert reasons(running(3, max_tokens=3), [1, 2, 3]) == [None, None, "length"]


def test_a_stop_on_the_last_token_allowed_is_a_stop():
    assert reasons(running(3, eos=(9,), max_tokens=2), [1, 9]) == [None, "stop"]


def test_prompt_and_output_together_are_limited_by_the_context():
    job = running(6, limits=toy.limits(context=10))
    assert reasons(job, [1, 1, 1, 1]) == [None, None, None, "length"]


@pytest.mark.parametrize("prompt", [60, 63, 64])
def test_a_full_cache_ends_when_every_entry_has_a_token(prompt):
    job = running(prompt, FULL)
    sampled = 0
    while job.take(1) is None:
        sampled, job.fed = sampled + 1, job.fed + 1
    # Each token fed takes an entry; the last token sampled is not fed.
    assert prompt + sampled == 64
    assert job.usage().completion_tokens == 64 - prompt + 1


def test_a_ring_never_ends_a_request():
    assert set(reasons(running(60, max_tokens=1000), [1] * 999)) == {None}


def test_usage_equals_that_of_a_simulated_ring():
    job = running(10, KVChoice("streaming", budget=7), max_tokens=100)
    ring, first_entry_writes = list(range(7, 10)), 0  # 4 sinks, then position p at (p - 4) % 3: 10 goes to entry 0
    for position in range(10, 21):
        job.take(1)
        job.fed += 1
        ring = [*ring, position][-3:]
        first_entry_writes += (position - 4) % 3 == 0
    kv = job.usage().kv
    assert kv.kept == 7
    assert kv.evicted == 21 - 4 - len(ring)
    assert kv.ring_wraps == first_entry_writes
    assert kv.bytes_held == 640  # all 64 entries of the slot are allocated
    assert (kv.policy, kv.capacity) == ("streaming", 7)


def test_a_prompt_shorter_than_the_sinks_evicts_nothing():
    kv = running(2).usage().kv
    assert (kv.kept, kv.evicted) == (2, 0)


def test_a_request_without_a_slot_has_used_no_entries():
    job = Job(Request("r", (1, 2), SamplingParams()), KVChoice("snapstream", budget=32), toy.limits(), PendingPrompt())
    usage = job.usage()
    assert (usage.prompt_tokens, usage.completion_tokens) == (2, 0)
    assert (usage.kv.capacity, usage.kv.kept, usage.kv.evicted, usage.kv.bytes_held) == (32, 0, 0, 0)


def test_prompts_that_are_compacted_share_a_prefill_only_if_their_choices_are_equal() -> None:
    def key(n: int, **changes: Any) -> bytes | None:
        prompt = PendingPrompt()
        request = Request("r", (1,) * n, SamplingParams())
        prompt.jobs.append(Job(request, KVChoice(**changes), toy.limits(prefill_workspace=256), prompt))
        return prompt.twin_key

    assert key(256, sinks=9) == key(256)
    assert key(257) == key(257)
    assert key(257, sinks=9) != key(257)
