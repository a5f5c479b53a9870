"""Landmarks of a prompt, with a tokenizer of one token a character and one that joins some."""

import pytest

from ringkv.base.kv import KVChoice
from ringkv.evaluation.cells import crossed
from ringkv.evaluation.kept import landmarks
from ringkv.evaluation.pending import UnansweredPrompt
from ringkv.evaluation.prompt import TokenizedPrompt
from ringkv.evaluation.sample import Sample
from ringkv.evaluation.tasks.catalogue import TASKS

TEXT = "x" * 30 + "4711" + "y" * 60 + "77" + "z" * 20 + "77"
QUESTION = "What is it? 4711 or not"


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 3])
def test_answers_that_stand_once_before_the_question_are_found(size: int) -> None:
    vocabulary = [*pieces(TEXT, size), *pieces(QUESTION, size)]
    asked = len(pieces(QUESTION, size))
    prompt = TokenizedPrompt(tuple(range(len(vocabulary))), question=asked)
    sample = Sample("one", TEXT, QUESTION, references=("4711", "77", "not there", ""))
    item = UnansweredPrompt(TASKS["passkey"], "inside", sample, prompt, tuple(crossed(("full",), (), KVChoice())))
    found = landmarks(item, lambda tokens: "".join(vocabulary[token] for token in tokens))
    assert found.tokens == len(vocabulary)
    assert found.answers == (pytest.approx(30 // size / len(vocabulary)),)
    assert found.question == pytest.approx(1 - asked / len(vocabulary))
