"""A list has the asked name once, at its depth, and as many names as fit."""

import re

import pytest

from ringkv.evaluation.sample import Sample
from ringkv.evaluation.scores import all_found
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.evaluation.tasks.source import Source


def words_of(sample: Sample) -> int:
    """Tokens are words here."""
    return len((sample.context + sample.question + sample.begin).split())


@pytest.fixture
def samples() -> list[Sample]:
    return list(TASKS["recall"].samples(Source((300,), 5, 0, None, words_of)))


def test_the_answer_is_the_number_of_the_name_that_is_asked_for(samples: list[Sample]) -> None:
    for one in samples:
        name = one.begin.strip("\n:")
        assert re.findall(rf"^{name}: (\d+)$", one.context, re.MULTILINE) == list(one.references)
        assert name in one.question
        assert all_found(one.references[0], one.references) == 1.0
        assert all_found("", one.references) == 0.0


def test_a_name_is_at_its_depth_in_a_list_as_long_as_fits(samples: list[Sample]) -> None:
    for one in samples:
        at = one.context.index(one.begin + " ") / len(one.context)
        assert at == pytest.approx(one.facts["depth"], abs=0.05)
        assert 290 < words_of(one) + one.answer_tokens <= 300
