import math
import re

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice, protect_system_message
from ringkv.base.selectors import KeyDiff, SnapKV

CHOICE = KVChoice(budget=100, recent=20, select=SnapKV(window=10))  # leaves 70 selected entries


@pytest.mark.parametrize(("tokens", "spans"), [(0, ()), (1, ((0, 1),)), (35, ((0, 35),)), (36, ())])
def test_a_system_message_is_protected_if_it_takes_at_most_half_of_the_selected_entries(tokens, spans):
    assert protect_system_message(CHOICE, tokens, 1000).protect == spans


def test_without_a_budget_the_slots_capacity_is_used():
    assert protect_system_message(KVChoice(recent=20, select=SnapKV(window=10)), 36, 1000).protect == ((0, 36),)


def test_a_capacity_below_the_budget_bounds_it():
    assert protect_system_message(CHOICE, 35, 99).protect == ()


def test_a_choice_that_protects_spans_is_unchanged():
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
        ("select", "keydif", r"one of snapkv, tova, keydiff"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(field, value, rule):
    with pytest.raises(InvalidRequest, match=f"kv_{field} is {re.escape(repr(value))}; it must be .*{rule}") as refused:
        KVChoice(**{field: value})
    assert refused.value.param == f"kv_{field}"


@pytest.mark.parametrize("span", [(5, 5), (9, 3), (-1, 4), (1, 2, 3), (0, 2.5)])
def test_invalid_protected_spans_are_refused(span):
    with pytest.raises(InvalidRequest, match=f"kv_protect is {re.escape(repr(span))}") as refused:
        KVChoice(protect=((0, 4), span))
    assert refused.value.param == "kv_protect"


def test_choices_with_different_selectors_are_different():
    assert len({KVChoice(), KVChoice(select=SnapKV()), KVChoice(select=KeyDiff())}) == 2
    assert repr(KVChoice(select=KeyDiff())) != repr(KVChoice())


def test_a_choices_window_is_its_selectors_window():
    assert KVChoice(select=SnapKV(window=5)).window == 5
    assert KVChoice(select=KeyDiff()).window == KVChoice().window == 32


def test_with_recall_a_share_of_newest_entries_is_small_and_a_count_is_not_changed() -> None:
    choices = [KVChoice(policy, recent=recent) for policy in ("snapstream", "arkvale") for recent in (0.25, 512)]
    assert [one.recent_entries(2048) for one in choices] == [512, 512, 64, 512]
    assert KVChoice("arkvale").recent_entries(100) == 25
