"""Generated prompts have each needle once, at its depth, and as many tokens as fit."""

import re
from collections import Counter

import pytest

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.scores import all_found
from ringkv.evaluation.tasks.catalogue import GROUPS, TASKS, select_tasks
from ringkv.evaluation.tasks.draft import longest
from ringkv.evaluation.tasks.ruler.needles import RETRIEVAL
from ringkv.evaluation.tasks.ruler.suite import POOLS
from ringkv.evaluation.tasks.source import Source

LENGTHS = (1200, 2400)


def words_of(sample: Sample) -> int:
    """Tokens are words here."""
    return len((sample.context + sample.question + sample.begin).split())


def source(data=None, count=5, seed=0, lengths=LENGTHS) -> Source:
    return Source(lengths, count, seed, data, words_of)


@pytest.mark.parametrize("name", [name for name in GROUPS["ruler"] if not name.startswith("qa")])
def test_a_prompt_is_as_long_as_fits_and_deterministic(name):
    task = TASKS[name]
    found = list(task.samples(source()))
    assert found == list(task.samples(source()))
    assert found != list(task.samples(source(seed=1)))
    assert [one.facts["length"] for one in found] == [1200] * 5 + [2400] * 5
    assert len({one.name for one in found}) == len(found)
    for one in found:
        room = one.facts["length"] - one.answer_tokens
        assert 0.85 * room < words_of(one) <= room


@pytest.mark.parametrize("name", RETRIEVAL)
def test_each_needle_is_in_its_prompt_once(name):
    for one in TASKS[name].samples(source()):
        assert len(set(one.references)) == RETRIEVAL[name].values * RETRIEVAL[name].queried
        for value in one.references:
            assert one.context.count(value) == 1
            assert value not in one.question + one.begin


@pytest.mark.parametrize("name", ["niah_single_1", "niah_single_2", "niah_single_3", "passkey"])
def test_a_single_needle_is_at_its_depth(name):
    for one in TASKS[name].samples(source()):
        at = one.context.index(one.references[0]) / len(one.context)
        assert at == pytest.approx(one.facts["depth"], abs=0.1)


def test_depths_are_spread_evenly():
    found = list(TASKS["niah_single_2"].samples(source(lengths=(1200,))))
    assert sorted(one.facts["depth"] for one in found) == [0, 0.25, 0.5, 0.75, 1]


def test_only_the_queried_keys_have_the_reference_values():
    for one in TASKS["niah_multiquery"].samples(source()):
        given = dict(re.findall(r"One magic number of (\S+) is (\d+)\.", one.context))
        assert {given[key] for key in given if key in one.question} == set(one.references)


def test_the_references_are_the_variables_that_the_chain_reaches():
    for one in TASKS["vt"].samples(source()):
        holds: dict[str, str] = {}
        for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", one.context):
            holds[name] = holds.get(value, value)
        (value,) = set(holds.values())
        assert value in one.question
        assert set(holds) == set(one.references)


def test_the_common_words_occur_most_often():
    for one in TASKS["cwe"].samples(source()):
        listed = one.context.rsplit("Below is", 1)[1]
        counts = Counter(re.findall(r"\d+\. (\S+)", listed))
        assert {word for word, count in counts.items() if count == 30} == set(one.references)
        assert set(counts.values()) == {30, 3}


def test_the_frequent_words_occur_more_often_than_the_fourth():
    for one in TASKS["fwe"].samples(source()):
        counts = Counter(word for word in one.context.split("\n\n")[1].split() if word != "...")
        first, second, third, *_ = counts.most_common()
        assert {first[0], second[0], third[0]} == set(one.references)
        assert third[1] > counts.most_common(4)[3][1]


def test_more_prompts_begin_with_the_same_ones():
    few, many = (list(TASKS["niah_single_2"].samples(source(count=count, lengths=(1200,)))) for count in (3, 9))
    assert many[:3] == few
    assert sorted(one.facts["depth"] for one in many) == [place / 8 for place in range(9)]


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_questions_keep_their_own_passages_whatever_the_length(name, texts):
    given = source(texts, lengths=(9000, 14000))
    pool = {one.text: one for one in POOLS[name](given)}
    found = list(TASKS[name].samples(given))
    assert {one.facts["length"] for one in found} == {9000, 14000}
    for one in found:
        assert words_of(one) <= one.facts["length"] - one.answer_tokens
        asked = pool[one.question.removeprefix("\n\nQuestion: ")]
        assert asked.references == one.references
        assert all(passage in one.context for passage in asked.passages)


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_questions_that_fit_are_searched_for_in_the_whole_pool(name, texts):
    every = list(TASKS[name].samples(source(texts, lengths=(4500,), count=99)))
    assert list(TASKS[name].samples(source(texts, lengths=(4500,), count=2))) == every[:2]
    assert len(POOLS[name](source(texts))) > len(every) > 2


def test_a_perfect_answer_scores_1_and_an_empty_one_0():
    for name in RETRIEVAL:
        for one in TASKS[name].samples(source()):
            assert all_found(" and ".join(one.references), one.references) == 1
            assert all_found("", one.references) == 0


def test_the_longest_draft_is_found():
    def make(hay: int) -> Sample:
        return Sample("x" * hay)

    assert len(longest(make, lambda draft: 7 + 3 * len(draft.context), 1000).context) == (1000 - 7) // 3
    with pytest.raises(CannotMake, match=r"50 tokens.* 12"):
        longest(make, lambda draft: 50, 12)


def test_hay_that_ends_is_used_whole():
    found = longest(lambda hay: Sample("x" * min(hay, 100)), lambda draft: len(draft.context), 10**6)
    assert len(found.context) == 100


def test_tasks_are_selected_by_name_or_group_and_unknown_names_are_refused():
    assert [task.name for task in select_tasks(["vt", "ruler"])][:2] == ["vt", "niah_single_1"]
    assert len(GROUPS["ruler"]) == 13
    with pytest.raises(Exception, match="'nonsense'"):
        select_tasks(["nonsense"])


def test_a_task_without_its_data_names_the_missing_file(tmp_path):
    with pytest.raises(CannotMake, match=r"longbench/qasper\.jsonl.* --data"):
        list(TASKS["qasper"].samples(source()))
    with pytest.raises(CannotMake, match=r"longbench/qasper\.jsonl"):
        list(TASKS["qasper"].samples(source(tmp_path)))
