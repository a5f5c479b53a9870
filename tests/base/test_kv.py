import pytest

from ringkv.base.kv import KVChoice, keeping_system
from ringkv.base.selectors import SnapKV

CHOICE = KVChoice(budget=100, recent=20, select=SnapKV(window=10))  # leaves 70 to be chosen


@pytest.mark.parametrize(("tokens", "spans"), [(0, ()), (1, ((0, 1),)), (35, ((0, 35),)), (36, ())])
def test_a_system_message_is_protected_where_it_takes_at_most_half_of_what_is_chosen(tokens, spans):
    assert keeping_system(CHOICE, tokens, 1000).protect == spans


def test_without_a_budget_the_slots_capacity_counts():
    assert keeping_system(KVChoice(recent=20, select=SnapKV(window=10)), 36, 1000).protect == ((0, 36),)


def test_what_is_protected_already_stays_as_it_is():
    choice = KVChoice(budget=100, recent=20, select=SnapKV(window=10), protect=((50, 60),))
    assert keeping_system(choice, 5, 1000) == choice
