from collections.abc import Mapping, Sequence

from bench.report import accuracy
from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import CellScore, group_scores


def means() -> Mapping[str, Sequence[CellScore]]:
    """Return the page's studies with made-up scores: full 100%, a quarter of snapstream 50%, streaming 0%."""
    cells = {"full": (1, 1), "snapstream 4x": (1, 0), "snapstream 4x window=64": (1, 0), "streaming 4x": (0, 0)}
    records = [
        Record(task, place, f"{sample}", cell, float(score), facts={"length": 4096})
        for task in ("niah_single_1", "vt")
        for place in ("inside", "after")
        for cell, scores in cells.items()
        for sample, score in enumerate(scores)
    ]
    return dict.fromkeys((study for _, study, *_ in accuracy.COLUMNS), group_scores(records))


def test_the_table_shows_scores_and_differences_of_the_same_prompts() -> None:
    lines = accuracy.summary(means()).splitlines()
    assert lines[0].count("(4 prompts)") == 5
    assert lines[2] == "| full | 100.0 | 100.0 | 100.0 | 100.0 | 100.0 |"
    row = next(line for line in lines if line.startswith("| snapstream 1/4 |"))
    assert row.count("50.0 (-50.0 [") == 5
    assert "| snapstream 1/2 |  |  |  |  |  |" in lines
