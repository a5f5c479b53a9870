"""The least budget that is named is the least: one entry fewer is refused, by the engine and at start alike."""

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

LONG = 10**6  # tokens: no budget here holds so many
shares = st.floats(0.001, 0.999)
choices = st.builds(
    KVChoice,
    st.sampled_from([one for one in POLICIES if one != "full"]),
    sinks=st.integers(0, 300),
    recent=shares | st.integers(1, 300),
    select=st.builds(SnapKV, window=st.integers(1, 300)) | st.just(KeyDiff()),
)


def works(choice: KVChoice, budget: int) -> bool:
    try:
        layout(choice, LONG, budget)
    except BudgetTooSmall:
        return False
    return True


@given(choices)
def test_one_entry_less_than_the_least_budget_is_refused_with_its_number(choice: KVChoice) -> None:
    least = min_budget(choice)
    assert works(choice, least)
    assert least == 1 or not works(choice, least - 1)


@given(choices, st.integers(1, 400))
def test_raising_a_budget_to_what_a_refusal_says_helps(choice: KVChoice, budget: int) -> None:
    try:
        check_budget(choice, budget)
    except BudgetTooSmall as refused:
        said = re.search(r"raise it to (\d+)", str(refused))
        assert said is not None
        assert not works(choice, budget)
        assert works(choice, int(said[1]))


@given(choices, st.integers(1, 400))
def test_a_start_takes_a_budget_if_a_request_may_have_it(choice: KVChoice, budget: int) -> None:
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
        taken = choose_kv(options, prompt_tokens=LONG, context=LONG)
    except BudgetTooSmall:
        assert not works(choice, budget)
        return
    assert works(taken, budget)


def test_the_smallest_default_budget_is_sinks_and_one_recent_token() -> None:
    assert min_budget(KVChoice()) == 5
    assert choose_kv(Options(kv_budget=5), 8192, 8192).budget == 5
    with pytest.raises(BudgetTooSmall, match="kv_budget 4 is less than 4 sinks and 1 recent; raise it to 5"):
        choose_kv(Options(kv_budget=4), 8192, 8192)


def test_a_selector_without_a_window_is_not_advised_to_lower_it() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_budget(KVChoice("snapkv", select=KeyDiff()), 20)
    assert "kv_window" not in str(refused.value)
