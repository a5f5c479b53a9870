"""Which chunks share a pass."""

import pytest

from ringkv.base.engine import Cached, Limits
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.job import Job, PendingPrompt, in_order, pack
from tests import toy


def prompts(*lengths: int, limits: Limits | None = None) -> list[PendingPrompt]:
    made = []
    for lane, length in enumerate(lengths):
        prompt = PendingPrompt(lane=lane, arrival=lane)
        prompt.begin(Cached())
        request = Request(f"{lane}", (1,) * length, SamplingParams())
        prompt.jobs.append(Job(request, KVChoice(), limits or toy.limits(), prompt))
        made.append(prompt)
    return made


def spans(waiting: list[PendingPrompt], rows: int, unit: int = 32) -> list[tuple[int, int, int]]:
    return [(chunk.lane, chunk.start, chunk.stop) for chunk in pack(waiting, rows, unit)]


def test_ten_short_prompts_are_one_pass() -> None:
    assert spans(prompts(*[30] * 10), 512) == [(lane, 0, 30) for lane in range(10)]


def test_prompts_fill_a_pass_in_their_order() -> None:
    assert spans(prompts(100, 40, 30, 5), 160) == [(0, 0, 100), (1, 0, 40), (3, 0, 5)]


def test_the_shortest_rest_is_first_and_in_every_fourth_pass_the_oldest() -> None:
    waiting = prompts(5000, 40, 90, 40)
    waiting[2].prefilled = 64
    orders = [[prompt.lane for prompt in in_order(waiting, number)] for number in range(1, 9)]
    assert orders == 2 * [*[[2, 1, 3, 0]] * 3, [0, 2, 1, 3]]


def test_chunks_end_at_units_or_at_the_end_of_a_prompt() -> None:
    assert spans(prompts(200, 100), 140) == [(0, 0, 128)]
    waiting = prompts(100)
    waiting[0].prefilled = 64
    assert spans(waiting, 512) == [(0, 64, 100)]


def test_a_prompt_that_begins_between_units_ends_its_first_chunk_at_one() -> None:
    waiting = prompts(300)
    waiting[0].begin(Cached(45, 45))
    assert spans(waiting, 100) == [(0, 45, 128)]


def test_a_chunk_ends_where_its_lane_is_compacted() -> None:
    waiting = prompts(600, 600, 100, limits=toy.limits(prefill_workspace=256))  # 192 entries stay
    waiting[0].prefilled, waiting[1].prefilled = 224, 288
    assert spans(waiting, 512) == [(0, 224, 256), (1, 288, 320), (2, 0, 100)]
    waiting[0].prefilled = 256
    assert spans(waiting[:1], 512) == [(0, 256, 320)]


def test_tokens_without_an_entry_do_not_count_for_units() -> None:
    waiting = prompts(300)
    waiting[0].begin(Cached(45, 20))  # token 57 has place 32
    assert spans(waiting, 20) == [(0, 45, 57)]
    assert spans(waiting, 100) == [(0, 45, 121)]


@pytest.mark.parametrize("rows", [1, 31])
def test_the_first_prompt_gets_one_unit_at_least(rows: int) -> None:
    assert spans(prompts(100, 100), rows) == [(0, 0, 32)]
