"""The questions about a text share it, and each asks for an entry that is there once."""

import json
import re
from itertools import pairwise

import pytest

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.scores import all_found
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.evaluation.tasks.source import Source
from tests.evaluation.tasks.test_recall import words_of

ANSWER = {"passkeys": r"The pass key of {} is (\d+)\.", "registers": r"^line {}: the register holds <(\d+)>$"}


def samples(name: str, count: int = 6, length: int = 2000) -> list[Sample]:
    return list(TASKS[name].samples(Source((length,), count, 0, None, words_of)))


@pytest.mark.parametrize("name", ANSWER)
def test_the_answer_is_the_only_value_of_the_name_that_is_asked_for(name: str) -> None:
    found = samples(name)
    assert len(found) == 6
    assert len({one.references for one in found}) == 6
    for one in found:
        (asked,) = re.findall(r"of (?:line )?(\w+-\w+)", one.question)
        assert re.findall(ANSWER[name].format(asked), one.context, re.MULTILINE) == list(one.references)
        assert asked in one.begin
        assert all_found(one.references[0], one.references) == 1.0


@pytest.mark.parametrize("name", ANSWER)
def test_questions_share_a_text_as_long_as_fits_with_answers_at_all_depths(name: str) -> None:
    found = samples(name)
    assert len({one.context for one in found}) == 1
    assert all(1940 < words_of(one) + one.answer_tokens <= 2000 for one in found)
    depths = sorted(float(one.facts["depth"]) for one in found)
    assert depths[0] < 0.06
    assert depths[-1] > 0.94
    assert max(after - before for before, after in pairwise(depths)) < 0.3


def test_a_conversation_has_asked_for_another_register_of_the_same_text_before() -> None:
    found, texts = samples("conversation"), set()
    for one in found:
        text, question, answer = one.context.rsplit("\n\n", 1)[0], *one.context.rsplit("\n\n", 1)[1].split("? ")
        (before,), (asked,) = (re.findall(r"of line (\w+-\w+)", each) for each in (question, one.question))
        (value,) = re.findall(ANSWER["registers"].format(before), text, re.MULTILINE)
        assert answer == f"The register of line {before} holds <{value}>."
        assert before != asked
        assert re.findall(ANSWER["registers"].format(asked), text, re.MULTILINE) == list(one.references)
        texts.add(text)
    assert len(texts) == 1
    assert all(1900 < words_of(one) + one.answer_tokens <= 2000 for one in found)


@pytest.mark.parametrize("keys", [75, 140])
def test_a_dictionary_is_json_with_the_value_of_each_key_that_is_asked_for(keys: int) -> None:
    for one in samples(f"dictionary_{keys}"):
        pairs = json.loads(one.context.removeprefix("JSON data:\n"))
        (asked,) = re.findall('"([^"]+)"', one.question)
        assert len(pairs) == keys
        assert (pairs[asked],) == one.references
        assert one.begin == f' "{asked}": "'


def test_a_dictionary_longer_than_the_longest_length_is_refused() -> None:
    with pytest.raises(CannotMake, match=r"140 keys .* 300"):
        samples("dictionary_140", length=300)
