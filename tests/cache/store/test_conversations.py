import pytest
import torch

from ringkv.base.kv import KVChoice
from ringkv.cache.store.conversations import Conversations
from ringkv.cache.store.pool import BLOCK, Pool

CHOICE = KVChoice(turns="continue")
SEEN = tuple(range(100))
HELD, NEWEST = 30, 10  # entries of which so many are the last tokens


@pytest.fixture
def it() -> Conversations:
    found = Conversations(Pool(3 * BLOCK * 2 * 2 * 4 * 4, 1, 2, 4, torch.empty(0)))
    found.save("", CHOICE, SEEN, NEWEST, *torch.randn(2, 1, 2, HELD, 4))
    return found


def test_a_prompt_that_goes_on_finds_all_that_was_left(it: Conversations) -> None:
    found = it.find("", CHOICE, (*SEEN, 7))
    assert found is not None
    assert (found.tokens, found.entries) == (100, HELD)


@pytest.mark.parametrize("told", [99, 95, 90])
def test_an_answer_told_differently_is_cut_where_it_differs(it: Conversations, told: int) -> None:
    found = it.find("", CHOICE, (*SEEN[:told], 500, 501))
    assert found is not None
    assert (found.tokens, found.entries) == (told, HELD - (100 - told))


def test_one_that_differs_before_the_newest_entries_finds_nothing(it: Conversations) -> None:
    assert it.find("", CHOICE, (*SEEN[:89], 500)) is None


def test_the_last_token_is_left_to_be_read(it: Conversations) -> None:
    found = it.find("", CHOICE, SEEN)
    assert found is not None
    assert (found.tokens, found.entries) == (99, HELD - 1)


def test_neither_another_salt_nor_another_choice_finds_it(it: Conversations) -> None:
    assert it.find("other", CHOICE, (*SEEN, 7)) is None
    assert it.find("", KVChoice(turns="continue", budget=5), (*SEEN, 7)) is None


def test_the_longest_is_taken(it: Conversations) -> None:
    it.save("", CHOICE, (*SEEN, 7, 8), NEWEST, *torch.randn(2, 1, 2, HELD, 4))
    found = it.find("", CHOICE, (*SEEN, 7, 8, 9))
    assert found is not None
    assert found.tokens == 102
    other = it.find("", CHOICE, (*SEEN, 5, 8, 9))
    assert other is not None
    assert other.tokens == 100


def test_one_that_begins_otherwise_is_another(it: Conversations) -> None:
    it.save("", CHOICE, (500, 501), 2, *torch.randn(2, 1, 2, 2, 4))
    assert it.find("", CHOICE, (600, 601, 602)) is None


def test_one_whose_memory_was_taken_is_gone(it: Conversations) -> None:
    it.save("", CHOICE, (500,), 1, *torch.randn(2, 1, 2, 3 * BLOCK, 4))
    assert it.find("", CHOICE, (*SEEN, 7)) is None
