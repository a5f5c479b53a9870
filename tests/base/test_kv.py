import math
import re

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice, protect_system_message
from ringkv.base.selectors import KeyDiff, SnapKV

CHOICE = KVChoice(budget=100, recent=20, select=SnapKV(window=10))  # leaves 70 to be chosen


@pytest.mark.parametrize(("tokens", "spans"), [(0, ()), (1, ((0, 1),)), (35, ((0, 35),)), (36, ())])
def test_a_system_message_is_protected_where_it_takes_at_most_half_of_what_is_chosen(tokens, spans):
    assert protect_system_message(CHOICE, tokens, 1000).protect == spans


def test_without_a_budget_the_slots_capacity_counts():
    assert protect_system_message(KVChoice(recent=20, select=SnapKV(window=10)), 36, 1000).protect == ((0, 36),)


def test_what_is_protected_already_stays_as_it_is():
    choice = KVChoice(budget=100, recent=20, select=SnapKV(window=10), protect=((50, 60),))
    assert protect_system_message(choice, 5, 1000) == choice


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("policy", "magic", "one of full, streaming, snapkv, snapstream"),
        ("budget", 0, "at least 1"),
        ("budget", 7.5, "a whole number"),
        ("sinks", -3, "at least 0"),
        ("recent", 0, "a share such as 0.25"),
        ("recent", -0.5, "a share such as 0.25"),
        ("recent", 2.5, "whole entries"),
        ("recent", math.nan, "a share such as 0.25"),
        ("recent", math.inf, "whole entries"),
        ("recent", "25%", "a share such as 0.25"),
        ("elastic", "no", "true or false"),
        ("turns", "again", "one of reread, continue"),
        ("select", "keydiff", r"one of SnapKV\(\), TOVA\(\), KeyDiff\(\)"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(field, value, rule):
    with pytest.raises(InvalidRequest, match=f"kv_{field} is {re.escape(repr(value))}; it must be .*{rule}") as refused:
        KVChoice(**{field: value})
    assert refused.value.param == f"kv_{field}"


@pytest.mark.parametrize("span", [(5, 5), (9, 3), (-1, 4), (1, 2, 3), (0, 2.5)])
def test_protected_spans_that_are_none_are_refused(span):
    with pytest.raises(InvalidRequest, match=f"kv_protect is {re.escape(repr(span))}") as refused:
        KVChoice(protect=((0, 4), span))
    assert refused.value.param == "kv_protect"


def test_a_choice_is_a_value_and_differs_by_its_selector():
    assert len({KVChoice(), KVChoice(select=SnapKV()), KVChoice(select=KeyDiff())}) == 2
    assert repr(KVChoice(select=KeyDiff())) != repr(KVChoice())


def test_the_trailing_tokens_that_are_kept_whole_are_the_selectors_window():
    assert KVChoice(select=SnapKV(window=5)).window == 5
    assert KVChoice(select=KeyDiff()).window == KVChoice().window == 32
