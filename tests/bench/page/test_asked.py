"""What was asked of the studies, answered from journals whose outcome is known."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from bench.page.asked import NOT_YET, asked
from bench.page.paper import paper_table
from bench.page.together import together
from ringkv.evaluation.journal import Journal, Record

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


def verdicts(folder: Path) -> list[str]:
    return [one.verdict for one in asked(folder)]


def found(folder: Path) -> list[str]:
    return [one.found for one in asked(folder)]


def test_what_no_study_answered_is_not_answered(tmp_path: Path) -> None:
    assert set(found(tmp_path)) == {NOT_YET}
    assert set(verdicts(tmp_path)) == {""}


def test_near_is_a_share_of_the_full_cache(tmp_path: Path) -> None:
    answered(tmp_path / "longbench-qwen", ("qasper", "lcc"), {"full": [0.5] * 5, "snapstream 4x": [0.49] * 5})
    assert next(asked(tmp_path))[1:] == ("-2.0% [-2.0, -2.0]", "met")


def test_far_is_missed(tmp_path: Path) -> None:
    answered(tmp_path / "longbench-qwen", ("qasper", "lcc"), {"full": [0.5] * 5, "snapstream 4x": [0.48] * 5})
    assert next(asked(tmp_path))[1:] == ("-4.0% [-4.0, -4.0]", "**missed**")


def test_above_is_asked_of_each_needle_task_and_of_no_other(tmp_path: Path) -> None:
    ruler = tmp_path / "ruler-qwen"
    answered(ruler, NEEDLES, {"streaming 4x": [0, 0, 0, 1, 0], "snapstream 4x": [1] * 5})
    answered(ruler, ("cwe",), {"streaming 4x": [1] * 5, "snapstream 4x": [0] * 5})
    assert (found(tmp_path)[1], verdicts(tmp_path)[1]) == ("surely on 2 of 2", "met")
    answered(ruler, ("niah_single_2",), {"streaming 4x": [0, 1, 0, 1, 0], "snapstream 4x": [1, 0, 0, 1, 0]})
    assert found(tmp_path)[1].startswith("surely on 2 of 3; not on niah_single_2 +0.0 [")
    assert verdicts(tmp_path)[1] == "**missed**"


def test_what_is_won_back_is_a_share_of_what_was_lost_where_questions_come_later(tmp_path: Path) -> None:
    scores = {"full": [1.0] * 5, "snapkv 2x kernel=5 pooling=avg": [0.2] * 5, "snapstream 2x select=keydiff": [0.8] * 5}
    answered(tmp_path / "ruler-qwen", NEEDLES, scores, ("after",))
    answered(tmp_path / "ruler-qwen", NEEDLES, {cell: [0.0] * 5 for cell in scores})
    assert (found(tmp_path)[2], verdicts(tmp_path)[2]) == ("+75.0% [+75.0, +75.0]", "met")


def test_our_settings_stand_beside_the_papers(tmp_path: Path) -> None:
    scores = {"snapstream 4x": [1] * 5, "snapstream 4x kernel=5 pooling=avg": [0.5] * 5}
    answered(tmp_path / "ruler-qwen", NEEDLES, scores)
    assert (found(tmp_path)[3], verdicts(tmp_path)[3]) == ("+50.0 points [+50.0, +50.0]", "met")


def test_a_layout_is_no_worse_unless_all_of_the_interval_says_so(tmp_path: Path) -> None:
    ours, paper = "snapstream 192", "snapstream 192 elastic=False"
    answered(tmp_path / "layouts-qwen", ("gsm8k",), {ours: [1, 0, 0, 1, 0], paper: [1, 1, 0, 0, 1]})
    assert verdicts(tmp_path)[5:] == ["met", "", ""]


def test_a_layout_that_is_surely_worse_is_missed(tmp_path: Path) -> None:
    ours, paper = "snapstream 192", "snapstream 192 elastic=False"
    answered(tmp_path / "layouts-qwen", ("gsm8k",), {ours: [0] * 5, paper: [1] * 5})
    assert verdicts(tmp_path)[5:] == ["**missed**", "", ""]


def test_only_prompts_with_all_scores_are_compared(tmp_path: Path) -> None:
    answered(tmp_path, ("vt",), {"full": [1, 1, 0], "streaming 4x": [0]})
    assert together(tmp_path, ("full", "streaming 4x")) == {"vt": [(1, 0)]}


def test_the_papers_comparison_is_over_the_same_prompts(tmp_path: Path) -> None:
    scores = {"full": [1, 1, 1], "streaming 4x": [0, 0, 0], "snapstream 4x": [1, 0]}
    answered(tmp_path / "documents-qwen", ("passkey",), scores)
    assert "| passkey | 4x | 2 | 100.0 | 0.0 | 50.0 | +50.0 |" in paper_table(tmp_path)
