"""trained: recall of the small models that examples/train makes, by what a cache keeps."""

from collections.abc import Mapping, Sequence

from bench.report.claims import StudyRecords
from bench.results import table
from bench.studies import TRAINED
from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import CellScore, length_of, task_scores

SHARES = {"2x": "1/2", "4x": "1/4", "8x": "1/8"}
ROWS: Mapping[str, str] = {  # label of a cell, with {} for the budget -> name
    "snapstream {}": "snapstream",
    "snapstream {} select=tova": "snapstream, tova",
    "streaming {}": "streaming",
}
PLACES = {"inside": "", "after": ", question after"}


def trained(answers: StudyRecords, length: int = 2048) -> str:
    """Return the table of recall in prompts of one `length`, and of the difference from the full cache."""
    scores = {variant: _scores(answers.get(f"trained-{variant}", ()), length) for variant in TRAINED}
    lines = [
        (f"{name}{suffix}", *(_shown(scores[variant].get((place, label))) for variant in TRAINED))
        for place, suffix in PLACES.items()
        for label, name in _labels().items()
    ]
    return table(("cache", *map(str.upper, TRAINED)), [line for line in lines if any(line[1:])])


def _scores(records: Sequence[Record], length: int) -> Mapping[tuple[str, str], CellScore]:
    found = task_scores([one for one in records if length_of(one) == length])
    return {(one.place, one.cell): one for one in found}


def _labels() -> Mapping[str, str]:
    each = {row.format(budget): f"{name} {share}" for row, name in ROWS.items() for budget, share in SHARES.items()}
    return {"full": "full", **each}


def _shown(one: CellScore | None) -> str:
    if one is None or one.mean is None:
        return ""
    lost = one.over_full
    return f"{one.mean:.0f}" + (f" ({lost.mean:+.0f} [{lost.low:+.0f}, {lost.high:+.0f}])" if lost else "")
