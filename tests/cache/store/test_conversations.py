import pytest
import torch

from ringkv.base.kv import BLOCK, KVChoice
from ringkv.cache.store.conversations import Conversations, Held
from ringkv.cache.store.pool import Pool
from tests.cache.rows import group, row

CHOICE = KVChoice(turns="continue")
SEEN = tuple(range(100))
PROMPT = 88
HELD, NEWEST = 30, 10  # entries, of which so many are the last tokens


def save(it: Conversations, tokens: tuple[int, ...], prompt: int, entries: int, newest: int) -> None:
    held = Held("", CHOICE, tokens, prompt, entries, newest)
    it.save(held, row(*torch.randn(2, 1, 2, entries, 4)), torch.arange(entries))


@pytest.fixture
def it() -> Conversations:
    found = Conversations(Pool(3 * BLOCK * 2 * 2 * 4 * 4, [group(1, 2, 4)], torch.empty(0)))
    save(found, SEEN, PROMPT, HELD, NEWEST)
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
    assert it.find("", CHOICE, SEEN[:PROMPT]) is None  # the same request again is read as the first time
    assert found is not None
    assert (found.tokens, found.entries) == (99, HELD - 1)


def test_neither_another_salt_nor_another_choice_finds_it(it: Conversations) -> None:
    assert it.find("other", CHOICE, (*SEEN, 7)) is None
    assert it.find("", KVChoice(turns="continue", budget=5), (*SEEN, 7)) is None


def test_the_longest_is_taken(it: Conversations) -> None:
    save(it, (*SEEN, 7, 8), PROMPT, HELD, NEWEST)
    found = it.find("", CHOICE, (*SEEN, 7, 8, 9))
    assert found is not None
    assert found.tokens == 102
    other = it.find("", CHOICE, (*SEEN, 5, 8, 9))
    assert other is not None
    assert other.tokens == 100


def test_one_that_begins_otherwise_is_another(it: Conversations) -> None:
    save(it, (500, 501), 1, 2, 2)
    assert it.find("", CHOICE, (600, 601, 602)) is None


@pytest.mark.parametrize("common", [95, 93])
def test_another_question_about_the_same_text_is_another_conversation(common: int) -> None:
    it = Conversations(Pool(3 * BLOCK * 2 * 2 * 4 * 4, [group(1, 2, 4)], torch.empty(0)))
    save(it, SEEN, 95, HELD, NEWEST)
    found = it.find("", CHOICE, (*SEEN[:common], 500, 501))
    assert (found is not None) == (common == 95)


def test_what_was_left_is_copied_in_the_order_given(it: Conversations) -> None:
    keys, values = torch.randn(2, 1, 2, HELD, 4)
    it.save(Held("", CHOICE, (1, 2, 3), 2, 3, 1), row(keys, values), torch.tensor([4, 9, 2]))
    found = it.find("", CHOICE, (1, 2, 3, 4))
    assert found is not None
    got = torch.zeros(2, 1, 2, 5, 4)
    it.load(found, row(*got))
    assert torch.equal(got[0][:, :, :3], keys[:, :, [4, 9, 2]])
    assert torch.equal(got[1][:, :, :3], values[:, :, [4, 9, 2]])
    assert not got[:, :, :, 3:].any()


def test_one_whose_memory_was_taken_is_gone(it: Conversations) -> None:
    save(it, (500,), 1, 3 * BLOCK, 1)
    assert it.find("", CHOICE, (*SEEN, 7)) is None
