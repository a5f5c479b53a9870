"""Tasks over real data: prompts have what their answers need, and the references score 1."""

import pytest

from ringkv.evaluation.sample import Answer, Sample
from ringkv.evaluation.tasks.catalogue import GROUPS, TASKS
from ringkv.evaluation.tasks.source import Source


def characters(sample: Sample) -> int:
    return len(sample.context + sample.question) // 4


def samples(name, texts, count=3, lengths=(20_000,)):
    return list(TASKS[name].samples(Source(lengths, count, 0, texts, characters)))


THERE = ["narrativeqa", "qasper", "multifieldqa_en", "2wikimqa", "musique", "gov_report", "qmsum", "multi_news", "trec"]
THERE += ["samsum", "passage_count", "lcc", "longeval", "gsm8k", "aime24"]


@pytest.mark.parametrize("name", THERE)
def test_the_references_score_1_and_empty_answers_0(name, texts):
    found = samples(name, texts)
    assert found
    for one in found:
        assert TASKS[name].score(Answer(one.references[0]), one) == pytest.approx(1)
        assert TASKS[name].score(Answer(""), one) == 0


def test_longbench_answer_lengths_equal_its_own_settings(texts):
    import json

    lengths = json.loads((texts / "longbench" / "config" / "dataset2maxlen.json").read_text())
    for name in GROUPS["longbench"]:
        if (texts / "longbench" / f"{name}.jsonl").is_file():
            assert {one.answer_tokens for one in samples(name, texts)} == {lengths[name]}


def test_choices_follow_the_document_and_the_letter_is_the_answer(texts):
    for one in samples("longbench_v2", texts):
        assert "(A) " in one.question
        assert "$" not in one.question.split("Choices:")[0][:40]
        assert one.context.startswith("Please read the following text")
        assert one.references[0] in "ABCD"
        assert TASKS["longbench_v2"].score(Answer(f"The correct answer is ({one.references[0]})"), one) == 1


def test_programs_that_pass_score_1(texts):
    for one in samples("humaneval", texts, count=1):
        solution = f"{one.references[0]}    return any(abs(a - b) < threshold for i, a in enumerate(numbers) "
        solution += "for b in numbers[:i])\n"
        assert TASKS["humaneval"].score(Answer(f"```python\n{solution}```"), one) == 1
        assert TASKS["humaneval"].score(Answer(""), one) == 0


def test_scored_text_follows_its_prefix(texts):
    whole = (texts / "text" / "wikitext-2_test.txt").read_text()
    found = samples("wikitext", texts, lengths=(1000, 2000))
    assert [one.facts["length"] for one in found] == [1000] * 3 + [2000] * 3
    for one in found:
        assert one.context + one.question in whole
        assert characters(Sample(one.context)) == pytest.approx(one.facts["length"] - 256 - 16, rel=0.02)
    assert TASKS["wikitext"].score(Answer("", [-1.0, -3.0]), found[0]) == -2
