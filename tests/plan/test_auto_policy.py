"""What `kv_policy auto` stands for, at the bytes where it changes."""

from pathlib import Path
from typing import Any

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.plan.auto_policy import settled
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.options import Options
from ringkv.plan.resolve import Wanted, resolve_all
from tests.plan.models import QWEN, SMOLLM2
from tests.plan.resolved import DEEPSEEK, DIRECTORY, resolved
from tests.refusals import refusal


@pytest.mark.parametrize(("options", "policy"), [({}, "full"), ({"kv_budget": 1024}, "arkvale")])
def test_what_evicts_nothing_is_chosen_up_to_the_byte_where_it_fits(options: dict[str, int], policy: str) -> None:
    named = resolved(slots=4, prefix_store="auto", kv_policy=policy, **options)
    need = engine_footprint(SMOLLM2, named).total(4)
    auto = [resolved(slots=4, prefix_store="auto", kv_policy="auto", memory=need - less, **options) for less in (0, 1)]
    assert [one.kv.policy for one in auto] == [policy, "snapstream"]
    assert auto[0].capacity == named.capacity
    assert auto[1].prompt_tokens == named.prompt_tokens
    assert f"{policy} is not possible" in auto[1].kv_why
    assert named.kv_why == ""


def test_an_unknown_policy_is_refused_with_auto_among_the_others() -> None:
    with refusal("kv_policy", "'arkval'.*arkvale.*scissorhands"):
        resolved(kv_policy="arkval")


def test_a_tier_is_for_arkvale_whatever_fits(tmp_path: Path) -> None:
    need = engine_footprint(SMOLLM2, resolved(slots=4, kv_policy="arkvale", kv_tier=str(tmp_path))).total(4)
    found = resolved(slots=4, kv_policy="auto", kv_tier=str(tmp_path), memory=need)
    assert (found.kv.policy, found.kv_tier) == ("arkvale", tmp_path)
    paged = Options(kv_policy="auto", kv_tier=str(tmp_path))
    assert settled(DIRECTORY, SMOLLM2, paged, {"host": 0})[0].kv_policy == "arkvale"


def test_what_a_model_or_its_options_cannot_have_is_not_chosen() -> None:
    latent = resolved(DEEPSEEK, kv_policy="auto", kv_budget=1024)
    assert (latent.kv.policy, latent.kv.budget) == ("snapstream", 1024)
    assert "latent caches" in latent.kv_why
    assert resolved(DEEPSEEK, kv_policy="auto").kv.policy == "full"
    compacted = resolved(kv_policy="auto", prefill_workspace=4096)
    assert (compacted.kv.policy, compacted.prefill_workspace) == ("snapstream", 4096)
    encoded = resolved(kv_policy="auto", kv_compression="4x", kv_format="zipcache")
    assert encoded.kv.policy == "snapstream"


def test_a_conversation_that_evicts_keeps_what_later_questions_need() -> None:
    chat: dict[str, Any] = {"kv_turns": "continue", "prefix_store": "auto", "slots": 4}
    memory = engine_footprint(SMOLLM2, resolved(**chat, kv_policy="full")).total(4) - 1
    found = resolved(**chat, kv_policy="auto", memory=memory)
    assert (found.kv.policy, found.kv.select.name, found.kv.heads) == ("snapstream", "kvzip", "global")
    assert "; kv_select kvzip " in found.kv_why
    for other, select in (({"kv_turns": None}, "snapkv"), ({"kv_select": "keydiff"}, "keydiff")):
        kept = resolved(**{**chat, **other}, kv_policy="auto", memory=memory)
        assert (kept.kv.policy, kept.kv.select.name, kept.kv.heads) == ("snapstream", select, "equal")
    assert resolved(**chat, kv_policy="auto", kv_budget=1024).kv.policy == "arkvale"
    latent = resolved(DEEPSEEK, **chat, kv_policy="auto", kv_budget=1024)
    assert (latent.kv.policy, latent.kv.select.name) == ("snapstream", "snapkv")
    assert "kvzip is not possible" in latent.kv_why


def test_models_of_one_server_decide_on_equal_parts() -> None:
    wanted = [Wanted(Path(name), model, Options(kv_policy="auto")) for name, model in (("a", SMOLLM2), ("b", QWEN))]
    need = engine_footprint(QWEN, resolved(QWEN, kv_policy="full")).total(1)
    assert [one.kv.policy for one in resolve_all(wanted, 2 * need)] == ["full", "full"]
    assert [one.kv.policy for one in resolve_all(wanted, 2 * need - 2)] == ["full", "snapstream"]


def test_a_model_evicts_if_another_needs_more_than_an_equal_part() -> None:
    asked = (("a", SMOLLM2, "auto"), ("b", QWEN, "full"))
    wanted = [Wanted(Path(name), model, Options(kv_policy=policy)) for name, model, policy in asked]
    large, small = (
        engine_footprint(model, resolved(model, kv_policy=policy)).total(1)
        for model, policy in ((QWEN, "full"), (SMOLLM2, "snapstream"))
    )
    found, other = resolve_all(wanted, large + small)
    assert (found.kv.policy, other.kv.policy) == ("snapstream", "full")
    assert found.kv_why.startswith("full is not possible")
    assert (found.prompt_tokens, other.prompt_tokens) == (SMOLLM2.context, 32_768)


def test_the_prefix_store_of_another_model_is_dropped_before_a_model_evicts() -> None:
    asked = (("a", SMOLLM2, {"kv_policy": "auto"}), ("b", QWEN, {"kv_policy": "full", "prefix_store": "auto"}))
    wanted = [Wanted(Path(name), model, Options(**options)) for name, model, options in asked]
    need = [engine_footprint(model, resolved(model, kv_policy="full")).total(1) for model in (QWEN, SMOLLM2)]
    found, other = resolve_all(wanted, sum(need))
    assert (found.kv.policy, other.kv.policy, other.store_bytes) == ("full", "full", 0)


def test_an_option_that_is_wrong_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="dtype"):
        resolved(kv_policy="auto", dtype="int3")
