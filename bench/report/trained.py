"""trained: recall of the small models that examples/train makes, by what a cache keeps."""

from collections.abc import Mapping, Sequence

from bench.report.claims import StudyRecords
from bench.results import table
from bench.studies import TRAINED
from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import CellScore, length_of, task_scores

ROWS: Mapping[tuple[str, str], str] = {  # place of the question, label of a cell -> name
    ("inside", "full"): "full",
    ("inside", "snapstream 4x"): "snapstream 1/4",
    ("inside", "snapstream 8x"): "snapstream 1/8",
    ("inside", "snapstream 8x select=tova"): "snapstream, tova 1/8",
    ("inside", "streaming 8x"): "streaming 1/8",
    ("after", "snapstream 2x"): "snapstream 1/2, question after",
}


def trained(answers: StudyRecords, length: int = 2048) -> str:
    """Return the table of recall in prompts of one `length`, and of the difference from the full cache."""
    scores = [_scores(answers.get(f"trained-{variant}", ()), length) for variant in TRAINED]
    lines = [(name, *(_shown(one.get(cell)) for one in scores)) for cell, name in ROWS.items()]
    return table(("cache", *map(str.upper, TRAINED)), [line for line in lines if any(line[1:])])


def _scores(records: Sequence[Record], length: int) -> Mapping[tuple[str, str], CellScore]:
    found = task_scores([one for one in records if length_of(one) == length])
    return {(one.place, one.cell): one for one in found}


def _shown(one: CellScore | None) -> str:
    if one is None or one.mean is None:
        return ""
    lost = one.over_full
    return f"{one.mean:.0f}" + (f" ({lost.mean:+.0f} [{lost.low:+.0f}, {lost.high:+.0f}])" if lost else "")
