"""A workspace in an engine's configuration, and in the memory that is planned."""

from typing import Any

import pytest

from ringkv.base.errors import DoesNotFit, InvalidRequest
from ringkv.models.config import parse_config
from ringkv.plan.engine_footprint import RESERVE, engine_footprint
from ringkv.plan.report import PlanRequest, find_shape, report
from ringkv.plan.shapes import configurations
from tests.plan.models import SMOLLM2
from tests.plan.resolved import resolved
from tests.refusals import refusal

GEMMA3 = parse_config({key: value for key, value in configurations()["gemma-3-27b"].items() if key != "hub"})
TOKEN, PLACE = 23_040, 4 * 30 * 3  # bytes of SmolLM2's keys and values; which token 90 heads hold


def test_staging_is_planned_for_the_workspace_whatever_the_longest_prompt_is() -> None:
    short, long = (resolved(prefill_workspace=2048, prompt_tokens=tokens) for tokens in (4096, 8192))
    assert (short.staged_tokens, long.staged_tokens) == (2048, 2048)
    exact = engine_footprint(SMOLLM2, resolved(prompt_tokens=2048))
    assert engine_footprint(SMOLLM2, long).staging == exact.staging + 2048 * PLACE


def test_by_default_prompts_may_then_be_as_long_as_the_context() -> None:
    context = 8192
    assert resolved(prefill_workspace=2048).prompt_tokens == SMOLLM2.context == context


def test_a_workspace_is_whole_chunks_and_none_if_every_prompt_fits() -> None:
    assert resolved(prefill_workspace=1500).prefill_workspace == 1536
    assert resolved(prefill_workspace=4096, prompt_tokens=4096) == resolved(prompt_tokens=4096)


def test_a_workspace_leaves_room_for_more_slots_in_the_same_memory() -> None:
    request = PlanRequest(tokens=131_072, kv_budget=2048, memory=10**11)
    full, bounded = (
        report(find_shape("llama-3.1-8b"), PlanRequest(**{**vars(request), "prefill_workspace": one}))
        for one in (None, 8192)
    )
    saved = (131_072 - 8192) * 131_072 - 8192 * 32 * 8 * 4
    assert full.rows[0] == bounded.rows[0]  # a full cache keeps every token
    assert full.staging_bytes - bounded.staging_bytes == saved
    assert (bounded.rows[1].slots or 0) - (full.rows[1].slots or 0) == pytest.approx(saved / (2048 * 131_072), abs=2)


def test_a_workspace_that_is_too_large_for_the_memory_is_named_and_the_prompt_limit_stays() -> None:
    memory = 134_515_008 * 2 + RESERVE + 4000 * TOKEN
    with pytest.raises(DoesNotFit, match=r"4,096 tokens.*prefill_workspace"):
        resolved(memory=memory, prefill_workspace=4096, kv_budget=512)


@pytest.mark.parametrize(
    ("options", "param", "reason"),
    [
        ({"prefill_workspace": 512}, "prefill_workspace", "must be at least 1,024.*chunks of 512 tokens"),
        ({"prefill_workspace": 0}, "prefill_workspace", "must be at least 1"),
        ({"kv_policy": "full"}, "kv_policy", "kv_policy full is not possible with prefill_workspace 2,048"),
        ({"kv_policy": "arkvale"}, "kv_policy", "kv_policy arkvale is not possible"),
        ({"kv_select": "kvzip"}, "kv_select", "kv_select kvzip is not implemented"),
        ({"kv_turns": "continue", "prefix_store": "1GB"}, "kv_turns", "kv_turns continue is not implemented"),
    ],
)
def test_what_does_not_go_with_a_workspace_is_refused(options: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        resolved(**{"prefill_workspace": 2048, **options})
    assert refused.value.param == param


def test_a_workspace_has_room_for_a_sliding_window_beside_what_is_evicted() -> None:
    with refusal("prefill_workspace", "2,048.* 1,024 tokens"):
        resolved(GEMMA3, prefill_workspace=1536)
