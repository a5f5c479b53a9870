from dataclasses import replace
from itertools import product

import pytest

from bench import accuracy
from bench.page.studies import PAGE, TASKS_PAGE, brief, means, progress, shared, tasks, tasks_page, with_studies
from bench.studies import OURS, STUDIES, quick_ways_to_choose, ways_to_choose, wide_ways_to_choose
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SELECTORS
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.tasks.catalogue import chosen


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES.keys())
def test_a_study_asks_for_tasks_that_are_there_and_has_full_to_compare_with(study):
    assert chosen(study.tasks)
    labels = [cell.label for cell in study.cells]
    assert labels[0] == "full"
    assert len(set(labels)) == len(labels)


def test_each_way_to_choose_changes_kvpress_settings():
    full, kvpress, *others = ways_to_choose("4x")
    assert (full.label, kvpress.label) == ("full", "snapstream 4x window=64 kernel=5 pooling=avg")
    labels = {cell.label for cell in others}
    assert {"snapstream 4x window=16 kernel=5 pooling=avg", "snapstream 4x window=64 kernel=5"} <= labels
    assert {"snapstream 4x kernel=7", "snapstream 4x window=64"} <= labels
    chosen_by = {cell.choice.select.name for cell in ways_to_choose("4x")}
    assert chosen_by == set(SELECTORS)
    assert not any("kvzip" in cell.label for cell in quick_ways_to_choose("4x"))


def test_ours_is_the_usual_one():
    assert OURS == KVChoice()
    assert Cell(KVChoice(), "8x") in wide_ways_to_choose("8x")


def answered(folder, *names, count=5):
    """Tasks that the full cache solves, and a quarter of it does not."""
    journal = Journal(folder, {"model": "m", "weights": "bf16"})
    journal.begin({"machine": "a machine", "version": "1"})
    for cell, score in {"full": 1.0, "snapstream 4x": 0.0}.items():
        for name, place in product(names, range(count)):
            facts, held = {"length": 4096}, {"prompt_tokens": 100, "kept": 25}
            answer = {"output_tokens": 12, "ring_wraps": place % 2}
            journal.add(Record(name, "inside", f"{place}", cell, score, facts=facts, **held, **answer))


def test_the_tables_are_of_the_answers_that_are_kept(tmp_path):
    answered(tmp_path, "vt", "cwe")
    assert "| vt, 4,096 | snapstream 4x | 5 | 0.0 | -100.0 [-100.0, -100.0] | 25% | 12 | 0.4 |" in tasks(tmp_path)
    assert "| ruler, mean of 2 tasks, 4,096 | snapstream 4x | 10 | 0.0 | -100.0 [-100.0, -100.0] |" in means(tmp_path)
    assert "| vt" not in means(tmp_path)
    assert "| snapstream 4x | 25% | 0.0 |  |" in brief(tmp_path)


def test_a_brief_table_is_over_the_prompts_that_every_cache_answered():
    def record(sample, cell, place="inside"):
        return Record("vt", place, sample, cell, 1.0)

    whole = [record("0", "full"), record("0", "x 4x")]
    after = [record("1", "full", "after")]
    assert shared([*whole, record("1", "full"), *after]) == [*whole, *after]


def test_a_study_of_one_task_shows_that(tmp_path):
    answered(tmp_path, "vt")
    assert "| vt, 4,096 | full | 5 | 100.0 |" in means(tmp_path)


def test_the_pages_show_the_studies_that_are_kept():
    text = PAGE.read_text()
    assert with_studies(text) == text
    assert tasks_page() == TASKS_PAGE.read_text()


def test_a_study_that_is_not_complete_says_so(tmp_path):
    answered(tmp_path / "ruler-qwen", "vt", count=1)
    page = with_studies("before <!-- studies:begin --> yesterday's <!-- studies:end --> after", tmp_path)
    assert page.startswith("before ")
    assert "were fixed beforehand; **not whole yet:** 1 are answered, and none under snapkv 2x window=64 kernel" in page
    assert "none under snapkv 2x window=64 kernel=5 pooling=avg, snapkv 4x" in page
    assert "a machine, ringkv 1" in page
    assert "yesterday's" not in page


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"longeval": 5, "passkey": 5}, "5 prompts of each task and length were fixed beforehand."),
        ({"longeval": 3, "passkey": 5}, "of some tasks the data has fewer, and 3 to 5 are answered."),
        ({"longeval": 5, "passkey": 3}, "**not whole yet:** 3 to 5 are answered."),
        ({"longeval": 5}, "**not whole yet:** 5 are answered."),
    ],
)
def test_what_the_data_lacks_is_told_from_what_was_not_asked_yet(counts, says, tmp_path):
    journal = Journal(tmp_path, {"model": "m", "weights": "bf16"})
    journal.begin({"machine": "a machine", "version": "1"})
    for cell, (task, count) in product(STUDIES["documents-qwen"].cells, counts.items()):
        for sample in range(count):
            journal.add(Record(task, "inside", f"{sample}", cell.label, 1.0))
    journal.add(Record("passkey", "inside", "0", "of a cell that is asked no more", 1.0))
    assert progress("documents-qwen", tmp_path).endswith(says)


def test_without_a_name_it_says_how_far_each_is(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(accuracy, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["accuracy"])
    accuracy.main()
    assert "ruler-qwen: 0 answers" in capsys.readouterr().out


def test_a_part_of_a_study_is_asked_first():
    study = STUDIES["ruler-qwen"]
    words = ["ruler-qwen", "--tasks", "vt,cwe", "--places", "inside", "--count", "5"]
    part = accuracy._part(study, accuracy._arguments(words))
    assert part == replace(study, tasks=("vt", "cwe"), places=("inside",), count=5)
    assert accuracy._part(study, accuracy._arguments(["ruler-qwen"])) == study
    assert accuracy._part(study, accuracy._arguments(["ruler-qwen", "--count", "99"])) == study
