import pytest

from bench import accuracy
from bench.accuracy import PAGE, STUDIES, shown, ways_to_choose, with_studies
from ringkv.base.kv import KVChoice
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.tasks.catalogue import chosen


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES.keys())
def test_a_study_asks_for_tasks_that_are_there_and_has_full_to_compare_with(study):
    assert chosen(study.tasks)
    labels = [cell.label for cell in study.cells]
    assert labels[0] == "full"
    assert len(set(labels)) == len(labels)


def test_each_way_to_choose_differs_from_the_usual_one_in_what_its_label_says():
    full, usual, *others = ways_to_choose("4x")
    assert (full.label, usual.label, usual.choice) == ("full", "snapstream 4x", KVChoice())
    assert all(cell.label.startswith("snapstream 4x ") for cell in others)
    assert {"snapstream 4x window=16", "snapstream 4x kernel=31 pooling=max", "snapstream 4x select=kvzip"} <= {
        cell.label for cell in others
    }


def test_the_table_is_of_the_answers_that_are_kept(tmp_path):
    journal = Journal(tmp_path, {"model": "m"})
    for cell, score in {"full": 1.0, "snapstream 4x": 0.0}.items():
        for place in range(4):
            facts = {"length": 4096}
            journal.add(Record("vt", "inside", f"{place}", cell, score, facts=facts, prompt_tokens=100, kept=25))
    assert "| vt, 4,096 | snapstream 4x | 4 | 0.0 | -100.0 [-100.0, -100.0] | 25% |" in shown(tmp_path)


def test_the_page_shows_the_studies_that_are_kept():
    text = PAGE.read_text()
    assert with_studies(text) == text


def test_a_study_that_is_not_complete_says_so(tmp_path):
    journal = Journal(tmp_path / "ruler-qwen", {"model": "m", "weights": "bf16"})
    journal.begin({"machine": "a machine", "version": "1"})
    journal.add(Record("vt", "inside", "4096/0", "full", 1.0, facts={"length": 4096}))
    page = with_studies("before <!-- studies:begin --> old <!-- studies:end --> after", tmp_path)
    assert page.startswith("before ")
    assert "10 prompts of each task and length were fixed beforehand, of which up to 1 are answered by now." in page
    assert "a machine, ringkv 1" in page
    assert "old" not in page


def test_without_a_name_it_says_how_far_each_is(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(accuracy, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["accuracy"])
    accuracy.main()
    assert "ruler-qwen: 0 answers" in capsys.readouterr().out
