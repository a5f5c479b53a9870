"""Prompts of a user's own file."""

import json
from pathlib import Path

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import Answer, CannotMake, NoneOfKind
from ringkv.evaluation.tasks.catalogue import GROUPS, TASKS
from ringkv.evaluation.tasks.source import Source


def source(tmp_path: Path, *lines: object, count: int = 10) -> Source:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return Source((4096,), count, 0, None, lambda sample: len(sample.context), path)


def test_prompts_are_divided_by_whether_they_have_answers_and_keep_their_numbers(tmp_path: Path) -> None:
    lines = {"prompt": "a"}, {"prompt": "b", "question": "?", "answers": ["Red", 7], "max_tokens": 5}, {"prompt": "c"}
    given = source(tmp_path, *lines, {"prompt": "d"}, count=3)
    with_answers, without = (list(TASKS[name].samples(given)) for name in GROUPS["own"])
    assert [(one.name, one.context, one.answer_tokens) for one in without] == [("1", "a", 128), ("3", "c", 128)]
    ((sample),) = with_answers
    assert (sample.name, sample.question, sample.references, sample.answer_tokens) == ("2", "\n\n?", ("Red", "7"), 5)
    scores = [TASKS["answers"].score(Answer(text), sample) for text in ("It is red.", "7 of them", "blue")]
    assert scores == [1, 1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r'prompt 1 is invalid \(.*truncated\); write {"prompt": "..."} on each line, with the fields "prompt", '),
        ('"text"', r"prompt 1 is invalid \(Expected `object`, got `str`\)"),
        ({"text": "a"}, r"prompt 1 is invalid \(Object contains unknown field `text`\)"),
        ({"question": "a"}, r"prompt 1 is invalid \(Object missing required field `prompt`\)"),
        ({"prompt": 5}, r"prompt 1 is invalid \(Expected `str`, got `int` - at `\$.prompt`\)"),
        ({"prompt": "a", "answer": "b"}, 'unknown field `answer`.*"prompt", "question", "answers", "max_tokens"'),
        ({"prompt": "a", "max_tokens": 0}, "Expected `int` >= 1"),
    ],
)
def test_a_line_that_is_no_prompt_is_refused_with_its_number(line: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        list(TASKS["agreement"].samples(source(tmp_path, line)))
    assert refused.value.param == "prompts"


@pytest.mark.parametrize("lines", [(), ("", " \n")])
def test_a_file_without_prompts_is_refused(lines: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"mine\.jsonl") as refused:
        list(TASKS["agreement"].samples(source(tmp_path, *lines)))
    assert not isinstance(refused.value, CannotMake)  # it concerns both tasks


@pytest.mark.parametrize(
    ("given", "message"), [({"answers": ["b"]}, "every prompt has answers"), ({}, "no prompt has answers")]
)
def test_a_kind_of_which_there_is_none_is_told_apart(given: dict[str, object], message: str, tmp_path: Path) -> None:
    name = "agreement" if given else "answers"
    with pytest.raises(NoneOfKind, match=message):
        list(TASKS[name].samples(source(tmp_path, {"prompt": "a", **given})))


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    given = Source((4096,), 1, 0, None, lambda sample: 1, tmp_path / "nothing")
    with pytest.raises(CannotMake, match="no file"):
        list(TASKS["agreement"].samples(given))
