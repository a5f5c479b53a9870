"""What was asked of the studies, answered from journals whose outcome is known."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from bench.page.asked import NOISE, NOT_YET, TOO_FEW, asked
from bench.page.paper import paper_table
from bench.page.together import together
from ringkv.evaluation.journal import Journal, Record

LONGBENCH, RULER = "choosing-longbench-qwen", "default-qwen"
NEEDLES = ("niah_single_1", "niah_multikey_1")


def answered(
    folder: Path, tasks: Sequence[str], scores: Mapping[str, Sequence[float]], places: Sequence[str] = ("inside",)
) -> None:
    """A journal in which each task's prompts have the same scores under each cell."""
    journal = Journal(folder, {"model": "m", "weights": "bf16"})
    journal.begin({"machine": "a machine", "version": "1"})
    for task, place, (cell, of_prompts) in product(tasks, places, scores.items()):
        for sample, score in enumerate(of_prompts):
            journal.add(Record(task, place, f"{sample}", cell, score))


def said(folder: Path, words: str) -> tuple[str, str]:
    """What was found, and the verdict, where a claim has these words first."""
    return next((one.found, one.verdict) for one in asked(folder) if words in one.claim)


def test_what_no_study_answered_is_not_answered(tmp_path: Path) -> None:
    assert {one[1:] for one in asked(tmp_path)} == {(NOT_YET, "")}


def test_near_is_a_share_of_the_full_cache(tmp_path: Path) -> None:
    answered(tmp_path / LONGBENCH, ("qasper", "lcc"), {"full": [0.5] * 5, "snapstream 4x": [0.49] * 5})
    assert next(asked(tmp_path))[1:] == ("-2.0% [-2.0, -2.0]", "met")


def test_far_is_missed(tmp_path: Path) -> None:
    answered(tmp_path / LONGBENCH, ("qasper", "lcc"), {"full": [0.5] * 5, "snapstream 4x": [0.48] * 5})
    assert next(asked(tmp_path))[1:] == ("-4.0% [-4.0, -4.0]", "**missed**")


def test_above_is_asked_of_each_needle_task_and_of_no_other(tmp_path: Path) -> None:
    ruler = tmp_path / RULER
    answered(ruler, NEEDLES, {"streaming 4x": [0, 0, 0, 1, 0], "snapstream 4x": [1] * 5})
    answered(ruler, ("cwe",), {"streaming 4x": [1] * 5, "snapstream 4x": [0] * 5})
    assert said(tmp_path, "needle") == ("surely on 2 of 2", "met")
    answered(ruler, ("niah_single_2",), {"streaming 4x": [0, 1, 0, 1, 0], "snapstream 4x": [1, 0, 0, 1, 0]})
    words, verdict = said(tmp_path, "needle")
    assert words.startswith("surely on 2 of 3; not on niah_single_2 +0.0 [")
    assert verdict == "**missed**"


def test_nothing_is_judged_by_so_few_prompts_that_there_is_no_interval(tmp_path: Path) -> None:
    answered(tmp_path / RULER, NEEDLES, {"streaming 4x": [0] * 5, "snapstream 4x": [1] * 5})
    answered(tmp_path / RULER, ("niah_single_2",), {"streaming 4x": [0] * 4, "snapstream 4x": [1] * 4})
    assert said(tmp_path, "needle") == ("no interval on 1 of 3 tasks", TOO_FEW)
    answered(tmp_path / LONGBENCH, ("qasper",), {"full": [0.5] * 4, "snapstream 4x": [0.1] * 4})
    assert next(asked(tmp_path))[1:] == ("-80.0%", TOO_FEW)


def test_what_is_won_back_is_a_share_of_what_was_lost_where_questions_come_later(tmp_path: Path) -> None:
    snapkv, keydiff = "snapkv 2x window=64 kernel=5 pooling=avg", "snapstream 2x select=keydiff"
    scores = {"full": [1.0] * 5, snapkv: [0.2] * 5, keydiff: [0.8] * 5}
    answered(tmp_path / "ruler-qwen", NEEDLES, scores, ("after",))
    answered(tmp_path / "ruler-qwen", NEEDLES, {cell: [0.0] * 5 for cell in scores})
    assert said(tmp_path, "SnapKV with kvpress's") == ("+75.0% [+75.0, +75.0]", "met")
    assert said(tmp_path, "what ours with a window of 64") == (NOT_YET, "")


def test_our_settings_stand_beside_kvpress_with_and_without_the_tasks_that_chose_them(tmp_path: Path) -> None:
    ours, kvpress = "snapstream 4x window=64", "snapstream 4x window=64 kernel=5 pooling=avg"
    answered(tmp_path / "ruler-qwen", ("niah_single_3", "niah_multikey_1"), {ours: [1] * 5, kvpress: [0] * 5})
    answered(tmp_path / "ruler-qwen", ("vt", "cwe"), {ours: [1] * 5, kvpress: [0.5] * 5})
    assert said(tmp_path, "kvpress's on RULER") == ("+75.0 points [+75.0, +75.0]", "met")
    assert said(tmp_path, "not chosen") == ("+50.0 points [+50.0, +50.0]", "met")


def test_our_default_stands_beside_kvpress_on_needles(tmp_path: Path) -> None:
    scores = {"snapstream 4x": [1] * 5, "snapstream 4x window=64 kernel=5 pooling=avg": [0.25] * 5}
    answered(tmp_path / RULER, NEEDLES, scores)
    assert said(tmp_path, "no less than kvpress's settings") == ("+75.0 points [+75.0, +75.0]", "met")


@pytest.mark.parametrize(
    ("ours", "papers", "verdict"),
    [
        ([1, 1, 0, 1, 0], [1, 0, 0, 1, 0], "met"),
        ([1, 0, 0, 1, 0], [1, 1, 0, 0, 1], NOISE),
        ([0] * 5, [1] * 5, "**missed**"),
    ],
)
def test_a_layout_is_worse_only_where_all_of_the_interval_says_so(
    ours: list[float], papers: list[float], verdict: str, tmp_path: Path
) -> None:
    scores = {"snapstream 192": ours, "snapstream 192 elastic=False": papers}
    answered(tmp_path / "layouts-qwen", ("gsm8k",), scores)
    assert said(tmp_path, "192 entries")[1] == verdict
    assert said(tmp_path, "256 entries") == (NOT_YET, "")


def test_lcc_is_left_out_where_that_is_said(tmp_path: Path) -> None:
    longbench = tmp_path / LONGBENCH
    answered(longbench, ("qasper",), {"full": [0.5] * 5, "snapstream 4x": [0.4] * 5})
    answered(longbench, ("lcc",), {"full": [0.5] * 5, "snapstream 4x": [0.6] * 5})
    assert said(tmp_path, "LongBench's mean") == ("+0.0% [+0.0, +0.0]", "met")
    assert said(tmp_path, "without `lcc`") == ("-20.0% [-20.0, -20.0]", "**missed**")


def test_only_prompts_with_all_scores_are_compared(tmp_path: Path) -> None:
    answered(tmp_path, ("vt",), {"full": [1, 1, 0], "streaming 4x": [0]})
    assert together(tmp_path, ("full", "streaming 4x")) == {"vt": [(1, 0)]}


def test_the_papers_comparison_is_over_the_same_prompts(tmp_path: Path) -> None:
    scores = {"full": [1, 1, 1], "streaming 4x": [0, 0, 0], "snapstream 4x window=64": [1, 0]}
    answered(tmp_path / "documents-qwen", ("passkey",), scores)
    assert "| passkey | 4x | 2 | 100.0 | 0.0 | 50.0 | +50.0 |" in paper_table(tmp_path)
