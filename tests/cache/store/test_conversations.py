import pytest
import torch

from ringkv.base.kv import BLOCK, KVChoice
from ringkv.cache.store.conversations import TRACED, Conversations, Known, SavedConversation
from ringkv.cache.store.pool import Pool
from tests.cache.rows import group, row

CHOICE = KVChoice(turns="continue")
SEEN = tuple(range(100))
PROMPT = 88
SAVED, NEWEST = 30, 10  # entries, and how many of them hold the last tokens


def save(it: Conversations, tokens: tuple[int, ...], prompt: int, entries: int, newest: int) -> None:
    conversation = SavedConversation("", CHOICE, tokens, prompt, entries, newest)
    it.save(conversation, row(*torch.randn(2, 1, 2, entries, 4)), torch.arange(entries))


@pytest.fixture
def it() -> Conversations:
    found = Conversations(Pool(3 * BLOCK * 2 * 2 * 4 * 4, [group(1, 2, 4)], torch.empty(0)))
    save(found, SEEN, PROMPT, SAVED, NEWEST)
    return found


def test_a_prompt_that_continues_finds_all_saved_entries(it: Conversations) -> None:
    found = it.find("", CHOICE, (*SEEN, 7))
    assert found is not None
    assert (found.tokens, found.entries) == (100, SAVED)


@pytest.mark.parametrize("common", [99, 95, 90])
def test_an_answer_that_differs_is_cut_at_the_first_difference(it: Conversations, common: int) -> None:
    found = it.find("", CHOICE, (*SEEN[:common], 500, 501))
    assert found is not None
    assert (found.tokens, found.entries) == (common, SAVED - (100 - common))


def test_a_difference_before_the_newest_entries_finds_nothing(it: Conversations) -> None:
    assert it.find("", CHOICE, (*SEEN[:89], 500)) is None


def test_the_last_token_is_left_for_prefill(it: Conversations) -> None:
    found = it.find("", CHOICE, SEEN)
    assert it.find("", CHOICE, SEEN[:PROMPT]) is None  # a repeated request is prefilled again
    assert found is not None
    assert (found.tokens, found.entries) == (99, SAVED - 1)


def test_neither_another_salt_nor_another_choice_finds_it(it: Conversations) -> None:
    assert it.find("other", CHOICE, (*SEEN, 7)) is None
    assert it.find("", KVChoice(turns="continue", budget=5), (*SEEN, 7)) is None


def test_the_longest_conversation_is_found(it: Conversations) -> None:
    save(it, (*SEEN, 7, 8), PROMPT, SAVED, NEWEST)
    found = it.find("", CHOICE, (*SEEN, 7, 8, 9))
    assert found is not None
    assert found.tokens == 102
    other = it.find("", CHOICE, (*SEEN, 5, 8, 9))
    assert other is not None
    assert other.tokens == 100


def test_another_first_token_is_another_conversation(it: Conversations) -> None:
    save(it, (500, 501), 1, 2, 2)
    assert it.find("", CHOICE, (600, 601, 602)) is None


@pytest.mark.parametrize("common", [95, 93])
def test_another_question_about_the_same_text_is_another_conversation(common: int) -> None:
    it = Conversations(Pool(3 * BLOCK * 2 * 2 * 4 * 4, [group(1, 2, 4)], torch.empty(0)))
    save(it, SEEN, 95, SAVED, NEWEST)
    found = it.find("", CHOICE, (*SEEN[:common], 500, 501))
    assert (found is not None) == (common == 95)


def test_entries_are_copied_in_the_given_order(it: Conversations) -> None:
    keys, values = torch.randn(2, 1, 2, SAVED, 4)
    it.save(SavedConversation("", CHOICE, (1, 2, 3), 2, 3, 1), row(keys, values), torch.tensor([4, 9, 2]))
    found = it.find("", CHOICE, (1, 2, 3, 4))
    assert found is not None
    got = torch.zeros(2, 1, 2, 5, 4)
    it.load(found, row(*got))
    assert torch.equal(got[0][:, :, :3], keys[:, :, [4, 9, 2]])
    assert torch.equal(got[1][:, :, :3], values[:, :, [4, 9, 2]])
    assert not got[:, :, :, 3:].any()


def test_a_conversation_that_the_pool_dropped_is_not_found(it: Conversations) -> None:
    save(it, (500,), 1, 3 * BLOCK, 1)
    assert it.find("", CHOICE, (*SEEN, 7)) is None


def test_what_entries_hold_is_known_of_the_last_conversations_and_cut_as_they_are() -> None:
    it = Conversations(Pool(12 * BLOCK * 2 * 2 * 4 * 4, [group(1, 2, 4)], torch.empty(0)))
    for number in range(TRACED + 2):
        known = Known((torch.arange(SAVED).expand(1, 2, -1) + number,))
        tokens = (number, *SEEN)
        conversation = SavedConversation("", CHOICE, tokens, PROMPT, SAVED, NEWEST, known)
        it.save(conversation, row(*torch.randn(2, 1, 2, SAVED, 4)), torch.arange(SAVED))
    found = [it.find("", CHOICE, (number, *SEEN[:97], 500, 501)) for number in range(TRACED + 2)]
    assert [hit is not None and len(hit.known.tokens) for hit in found] == [0, 0] + [1] * TRACED
    last = found[-1]
    assert last is not None
    assert last.known.tokens[0].tolist() == [[list(range(TRACED + 1, TRACED + 1 + SAVED - 3))] * 2]
