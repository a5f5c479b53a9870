from pathlib import Path

import pytest

from ringkv.evaluation.prompt import PromptBuilder
from ringkv.evaluation.sample import Sample
from tests import chat_model
from tests.refusals import refusal

SAMPLE = Sample(name="one", context="A long text.", question="\n\nWhat?", begin=" It", answer_tokens=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("model"))


def test_a_question_inside_or_after_makes_the_same_tokens(folder):
    prompts = PromptBuilder(folder, 1000, 2000)
    inside, after = (prompts.make(SAMPLE, place) for place in ("inside", "after"))
    assert inside.forced == ()
    assert inside.tokens == after.tokens + after.forced
    assert bytes(token for token in after.tokens if token < 256) == b"user:A long text."
    assert bytes(token for token in after.forced if token < 256) == b"\n\nWhat? It"
    assert prompts.count_tokens(SAMPLE) == len(inside.tokens)
    following = prompts.make(SAMPLE, "next")
    assert (following.tokens, following.following, following.prefilled) == (after.tokens, after.forced, inside.tokens)
    assert len({inside.digest, after.digest, following.digest}) == 3


def test_a_sample_that_is_not_a_chat_has_no_template(folder):
    bare = PromptBuilder(folder, 1000, 2000).make(Sample(name="one", context="def f():", is_chat=False), "inside")
    assert bytes(bare.tokens) == b"def f():"


@pytest.mark.parametrize(("longest", "context"), [(41, 2000), (2000, 51)])
def test_a_context_that_is_too_long_loses_its_middle(folder, longest, context):
    sample = Sample(name="one", context="a" * 50 + "b" * 50, question="?", answer_tokens=10, is_chat=False)
    cut = PromptBuilder(folder, longest, context).make(sample, "inside")
    assert bytes(cut.tokens) == b"a" * 20 + b"b" * 20 + b"?"


def test_a_question_that_leaves_no_room_is_refused(folder):
    sample = Sample("text", name="one", question="?" * 60, is_chat=False, answer_tokens=4)
    with refusal("lengths", "60 tokens"):
        PromptBuilder(folder, 61, 2000).make(sample, "inside")
