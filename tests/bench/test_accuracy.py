import csv
import io
from dataclasses import replace
from itertools import product
from statistics import fmean

import pytest

from bench import accuracy
from bench.answers import records
from bench.studies import OPTIONS_OF, STUDIES
from ringkv.evaluation.journal import Record
from ringkv.evaluation.tasks.catalogue import select_tasks


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_existing_tasks_and_different_caches(name: str) -> None:
    study = STUDIES[name]
    assert select_tasks(study.tasks)
    labels = [cell.label for cell in study.cells]
    assert len(set(labels)) == len(labels)


def test_options_are_of_studies() -> None:
    assert OPTIONS_OF.keys() <= STUDIES.keys()


def test_a_study_without_the_full_cache_has_the_prompts_of_one_with_it() -> None:
    study, other = STUDIES["pages-16-longbench-qwen"], STUDIES["pages-longbench-qwen"]
    assert replace(study, cells=other.cells) == other
    assert set(study.cells) < set(other.cells)


def answered(*names: str) -> list[Record]:
    """Return made-up answers, all right with the full cache and all wrong with a quarter."""
    caches = (("full", 1.0, 100), ("snapstream 4x", 0.0, 25))
    return [
        Record(
            name, "inside", f"{place}", cell, score, kept=kept, ring_wraps=place % 2,
            prompt_tokens=100, output_tokens=12, facts={"length": 4096},
        )
        for (cell, score, kept), name, place in product(caches, names, range(5))
    ]  # fmt: skip


def test_the_table_of_a_study_is_its_means_or_its_only_task() -> None:
    both, one = accuracy.means(answered("vt", "cwe")), accuracy.means(answered("vt"))
    assert (
        "| ruler, mean of 2 tasks, 4,096 | snapstream 4x | 10 | 0.0 | -100.0 [-100.0, -100.0] | 25% | 12 | 0.4 |"
        in both
    )
    assert "| vt" not in both
    assert "| vt, 4,096 | full | 5 | 100.0 |" in one


def test_the_data_file_has_every_task_and_mean_of_a_study() -> None:
    lines = list(csv.DictReader(io.StringIO(accuracy.scores(["default-qwen"]))))
    answers = records("default-qwen")
    assert {(line["task"], line["cache"]) for line in lines} > {(one.task, one.cell) for one in answers}
    case = ("niah_multikey_3", "snapstream 4x", "inside")
    (line,) = [line for line in lines if (line["task"], line["cache"], line["question"]) == case]
    scores = [one.score for one in answers if (one.task, one.cell, one.place) == case and one.score is not None]
    assert float(line["score"]) == pytest.approx(100 * fmean(scores), abs=1e-3)
    assert int(line["prompts"]) == len(scores)
    assert float(line["low"]) <= float(line["difference"]) <= float(line["high"])


def test_the_data_file_is_that_of_the_answers() -> None:
    """One study stands for all, which take long."""
    header, *lines = accuracy.scores(["ruler-smollm2"]).splitlines()
    written = accuracy.SCORES.read_text(encoding="utf-8").splitlines()
    assert header == written[0]
    assert lines == [line for line in written if line.startswith("ruler-smollm2,")]


def test_without_a_name_it_lists_the_answers_of_each_study(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "records", lambda name: [])
    monkeypatch.setattr("sys.argv", ["accuracy"])
    accuracy.main()
    assert "ruler-qwen: 0 answers" in capsys.readouterr().out


def test_the_answers_of_an_interrupted_run_are_packed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    packed = []

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(accuracy, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(accuracy, "unpack", lambda name, to: to)
    monkeypatch.setattr(accuracy, "pack", lambda name, at: packed.append((name, at)))
    monkeypatch.setattr(accuracy, "evaluate", interrupted)
    monkeypatch.setattr("sys.argv", ["accuracy", "ruler-qwen"])
    with pytest.raises(KeyboardInterrupt):
        accuracy.main()
    assert packed == [("ruler-qwen", tmp_path / "accuracy" / "ruler-qwen")]
