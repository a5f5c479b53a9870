"""The minimum budget is exact: one entry less is refused, both by the engine and when the engine is configured."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.budgets import check_budget, min_budget
from ringkv.base.errors import BudgetTooSmall, InvalidRequest
from ringkv.base.kv import POLICIES, KVChoice
from ringkv.base.selectors import KeyDiff, SnapKV
from ringkv.cache.layouts import layout
from ringkv.plan.choose_kv import choose_kv
from ringkv.plan.options import Options
from tests.refusals import refusal

LONG = 10**6  # tokens; more than any budget here
shares = st.floats(0.001, 0.999)
choices = st.builds(
    KVChoice,
    st.sampled_from([policy for policy in POLICIES if policy not in ("full", "arkvale")]),
    sinks=st.integers(0, 300),
    recent=shares | st.integers(1, 300),
    select=st.builds(SnapKV, window=st.integers(1, 300)) | st.just(KeyDiff()),
)


def is_accepted(choice: KVChoice, budget: int) -> bool:
    try:
        layout(choice, LONG, budget)
    except BudgetTooSmall:
        return False
    return True


@given(choices)
def test_one_entry_less_than_the_minimum_budget_is_refused(choice: KVChoice) -> None:
    minimum = min_budget(choice)
    assert is_accepted(choice, minimum)
    assert minimum == 1 or not is_accepted(choice, minimum - 1)


@given(choices, st.integers(1, 400))
def test_the_budget_that_an_error_recommends_is_accepted(choice: KVChoice, budget: int) -> None:
    try:
        check_budget(choice, budget)
    except BudgetTooSmall as refused:
        remedy = re.search(r"raise it to (\d+)", str(refused))
        assert remedy is not None
        assert not is_accepted(choice, budget)
        assert is_accepted(choice, int(remedy[1]))


@given(choices, st.integers(1, 400))
def test_the_engine_accepts_a_default_budget_if_a_request_may_have_it(choice: KVChoice, budget: int) -> None:
    select = choice.select
    window = select.window if isinstance(select, SnapKV) else None
    options = Options(
        kv_policy=choice.policy,
        kv_budget=budget,
        kv_sinks=choice.sinks,
        kv_recent=f"{100 * choice.recent:.10f}%" if choice.recent < 1 else choice.recent,
        kv_select=select.name,
        kv_window=window,
    )
    try:
        resolved = choose_kv(options, prompt_tokens=LONG, context=LONG)
    except BudgetTooSmall:
        assert not is_accepted(choice, budget)
        return
    assert is_accepted(resolved, budget)


def test_the_smallest_default_budget_is_sinks_and_one_recent_token() -> None:
    assert min_budget(KVChoice()) == 5
    assert choose_kv(Options(kv_budget=5), 8192, 8192).budget == 5
    with refusal("kv_budget", "raise it to 5", BudgetTooSmall):
        choose_kv(Options(kv_budget=4), 8192, 8192)


def test_a_selector_without_a_window_is_not_advised_to_lower_it() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_budget(KVChoice("snapkv", select=KeyDiff()), 20)
    assert "kv_window" not in str(refused.value)
