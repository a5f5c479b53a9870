"""The report of a folder of answers."""

from pathlib import Path

import numpy as np
import pytest

from ringkv.evaluation import journal
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.outcome import LEGEND
from ringkv.evaluation.report import failures, row, sections, write
from ringkv.evaluation.summary import task_scores

CELLS = {"full": 1.0, "streaming 4x": 0.1, "snapstream 4x": 0.8, "snapstream 2x": 0.9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("answers")
    answers = Journal(to, {"model": "toy", "weights": "bf16", "seed": 0})
    answers.begin({"machine": "a machine", "version": "1"})
    for cell, score in CELLS.items():
        held = {"prompt_tokens": 4000, "kept": 4000 if cell == "full" else 2000 if "2x" in cell else 1000}
        for place in range(20):
            facts = {"length": 4096}
            answers.add(Record("niah_single_2", "inside", f"{place}", cell, place < 20 * score, facts=facts, **held))
            answers.add(Record("vt", "inside", f"{place}", cell, 1.0, facts=facts, **held))
            logprobs = tuple(np.linspace(-2, -3 + score, 32))
            answers.add(Record("wikitext", "after", f"{place}", cell, float(np.mean(logprobs)), logprobs=logprobs))
        for place in range(3):  # too few
            answers.add(Record("gsm8k", "inside", f"{place}", cell, float(place == 0 or cell == "full"), **held))
    answers.add(Record("vt", "inside", "0", "snapkv 99x", None, error="too small"))
    return to


@pytest.fixture(scope="module")
def report(folder: Path) -> str:
    path = write(folder, sections(folder))
    assert path == folder / "report.md"
    return path.read_text()


def test_the_answers_to_a_users_own_prompts_stand_one_below_the_other(tmp_path: Path) -> None:
    answers = Journal(tmp_path, {"model": "toy"})
    answers.begin({"machine": "a machine", "version": "1"})
    for sample in ("10", "2"):
        for cell, text, score in (("snapstream 4x", "Rome,\nI think", 0.0), ("full", "Paris", 1.0)):
            answers.add(Record("answers", "inside", sample, cell, score, text=text, prompt_tokens=100, kept=25))
    text = write(tmp_path, sections(tmp_path)).read_text()
    first, second = text.split("## Answers to prompt ")[1:]
    assert first.startswith("2")
    assert second.startswith("10")
    assert "- **full, 100%**: Paris\n- **snapstream 4x, 0%**: Rome, I think\n" in first


def test_losses_are_distinguished_from_noise_and_from_too_few_prompts(report: str) -> None:
    for cell in (
        "-90.0 [-100.0, -75.0]",
        "+0.0 [+0.0, +0.0]",
        "-66.7, too few prompts",
        "ruler, mean of 2 tasks, 4,096",
    ):
        assert f"| {cell} |" in report
    assert LEGEND in report


def test_the_verdict_comes_first_and_then_a_line_for_each_cell_with_the_full_cache(report: str) -> None:
    assert report.startswith("# toy: what compression costs\n\ngreedy, weights bf16, seed 0; a machine, ringkv 1.\n")
    texts = ("## At 2x, snapstream keeps ", "The full cache scores 100.0% over 43 prompts.")
    cells = (f"- **{cell}**: " for cell in ("snapstream 2x", "snapstream 4x", "streaming 4x"))
    failed = ("## 1 answers failed", "- **snapkv 99x, 1**: too small")
    places = [report.index(text) for text in (*texts, *cells, *failed, "## Every task", "## Next")]
    assert places == sorted(places)


def test_failures_that_differ_in_numbers_are_one() -> None:
    records = [Record("vt", "inside", f"{n}", "snapkv 4x", None, error=f"full after {n} of 1,{n}00") for n in (2, 3, 4)]
    other = Record("vt", "inside", "5", "snapkv 4x", None, error="another reason")
    found = [(item.name, item.text) for item in failures([*records, other])]
    assert found == [("snapkv 4x, 1", "another reason"), ("snapkv 4x, 3", "full after 2 of 1,200")]


def test_without_a_full_cache_the_report_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    lines = (folder / journal.NAME).read_text().splitlines(keepends=True)
    (tmp_path / journal.NAME).write_text("".join(line for line in lines if '"cell": "full"' not in line))
    *_, last = sections(tmp_path)
    assert "Nothing can be compared, because the full cache has no answers." in last.text


def test_a_cell_without_answers_has_no_figures(folder: Path) -> None:
    (failed,) = (row(one) for one in task_scores(list(journal.read(folder / journal.NAME))) if one.cell == "snapkv 99x")
    assert failed[2:] == ("0", "failed", "", "", "", "")


def test_the_same_answers_make_the_same_report(folder: Path, report: str) -> None:
    assert write(folder, sections(folder)).read_text() == report
