import csv
import io
from statistics import fmean

import pytest

from bench.report import accuracy
from bench.report.claims import StudyRecords
from ringkv.evaluation.journal import Record


@pytest.fixture(scope="module")
def answers() -> StudyRecords:
    return accuracy.answers()


def test_the_data_file_has_every_task_and_mean_of_every_study(answers: StudyRecords) -> None:
    lines = list(csv.DictReader(io.StringIO(accuracy.data(answers, accuracy.groups(answers)))))
    assert {line["study"] for line in lines} == set(answers)
    for study, task, cell in (
        ("ruler-qwen", "cwe", "streaming 4x"),
        ("default-qwen", "niah_multikey_3", "snapstream 4x"),
    ):
        (line,) = [
            one
            for one in lines
            if (one["study"], one["task"], one["cache"], one["question"]) == (study, task, cell, "inside")
        ]
        scores = [one.score for one in answers[study] if (one.task, one.cell, one.place) == (task, cell, "inside")]
        assert float(line["score"]) == pytest.approx(
            100 * fmean(score for score in scores if score is not None), abs=1e-3
        )
        assert int(line["prompts"]) == len(scores)
        assert float(line["low"]) <= float(line["difference"]) <= float(line["high"])


def test_a_mean_counts_each_task_alike(answers: StudyRecords) -> None:
    means = accuracy.groups(answers)
    (found,) = [one for one in means["ruler-qwen"] if (one.cell, one.place) == ("full", "inside")]
    tasks: dict[str, list[float]] = {}
    for one in answers["ruler-qwen"]:
        if (one.cell, one.place) == ("full", "inside") and one.score is not None:
            tasks.setdefault(one.task, []).append(one.score)
    assert found.mean == pytest.approx(100 * fmean(fmean(scores) for scores in tasks.values()))


def made() -> StudyRecords:
    """Return the page's studies with made-up scores: full 100%, a quarter of snapstream 50%, streaming 0%."""
    cells = {"full": (1, 1), "snapstream 4x": (1, 0), "snapstream 4x window=64": (1, 0), "streaming 4x": (0, 0)}
    records = [
        Record(task, place, f"{sample}", cell, float(score), facts={"length": 4096})
        for task in ("niah_single_1", "vt")
        for place in ("inside", "after")
        for cell, scores in cells.items()
        for sample, score in enumerate(scores)
    ]
    studies = {study for _, study, *_ in accuracy.COLUMNS} | {"ruler-qwen", "longbench-qwen"}
    return dict.fromkeys(studies, records)


def test_the_table_shows_scores_and_differences_of_the_same_prompts() -> None:
    lines = accuracy.summary(accuracy.groups(made())).splitlines()
    assert lines[0].count("(4 prompts)") == 5
    assert lines[2] == "| full | 100.0 | 100.0 | 100.0 | 100.0 | 100.0 |"
    row = next(line for line in lines if line.startswith("| snapstream 1/4 |"))
    assert row.count("50.0 (-50.0 [") == 5
    assert "| snapstream 1/2 |  |  |  |  |  |" in lines


def test_the_first_table_of_the_page_has_a_quarter_and_the_full_cache() -> None:
    found = accuracy.scores(accuracy.groups(made()))
    assert list(found) == ["LongBench, 4 prompts", "RULER's needles, 4 prompts"]
    assert all(kept.startswith("50.0 (-50.0 [") and full == "100.0" for kept, full in found.values())


def test_the_picture_has_a_point_for_each_cache_and_budget() -> None:
    picture = accuracy.picture(accuracy.groups(made()))
    assert picture.count("<circle") == 2 + 2 * 4  # the legend, and two caches in four panels
    assert picture.count('class="bar"') == 8
