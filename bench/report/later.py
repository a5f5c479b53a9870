"""later: what is found if the question comes in the next turn, by what a step may read of the text."""

from collections.abc import Iterator, Mapping, Sequence

from bench.report.accuracy import Groups
from bench.report.claims import StudyRecords
from bench.results import table
from ringkv.evaluation.summary import CellScore, task_scores

ROWS: Mapping[tuple[str, str], str] = {  # study, task -> name; the study's mean if there is no task
    ("later-qwen", ""): "RULER, 4k, 4 tasks",
    ("later-others-qwen", ""): "RULER, 4k, the other 9",
    ("ruler-16k-qwen", ""): "RULER, 16k, 4 tasks",
    ("lookups-qwen", "registers"): "640 registers, 10k",
    ("lookups-qwen", "dictionary_75"): "75 UUIDs, 5k",
    ("lookups-qwen", "dictionary_140"): "140 UUIDs, 10k",
    ("passkeys-8k-qwen", "passkeys"): "20 pass keys, 8k",
    ("passkeys-30k-qwen", "passkeys"): "20 pass keys, 30k",
    ("passkey-30k-qwen", "passkey"): "one pass key per text, 30k",
    ("conversation-qwen", "conversation"): "second question, 4k",
}
BUDGETS = ("2x", "4x"), ("1024", "512")
"""Of the columns, by study."""
HEAD = ("text", "prompts", "full", "arkvale 1/2", "arkvale 1/4", "KeyDiff 1/2", "KeyDiff 1/4")


def later(answers: StudyRecords, means: Groups) -> str:
    """Return the table of scores, and of the difference from the full cache on the same prompts."""
    found = {
        name: {one.cell: one for one in _scores(answers, means, study, task)} for (study, task), name in ROWS.items()
    }
    return table(HEAD, [tuple(_line(name, cells)) for name, cells in found.items() if "full" in cells])


def _scores(answers: StudyRecords, means: Groups, study: str, task: str) -> Sequence[CellScore]:
    if not task:
        return means.get(study, ())
    return [one for one in task_scores(answers.get(study, ())) if one.task == task]


def _line(name: str, cells: Mapping[str, CellScore]) -> Iterator[str]:
    budgets = next(one for one in BUDGETS if f"arkvale {one[0]}" in cells)
    yield from (name, str(cells["full"].count), _shown(cells["full"]))
    for label in ("arkvale {}", "snapstream {} select=keydiff"):
        yield from (_shown(cells.get(label.format(budget))) for budget in budgets)


def _shown(one: CellScore | None) -> str:
    if one is None:
        return ""
    lost = one.over_full
    if not lost:
        return f"{one.mean:.0f}"
    if not any((lost.mean, lost.low, lost.high)):
        return f"{one.mean:.0f} (equal)"
    return f"{one.mean:.0f} ({lost.mean:+.0f} [{lost.low:+.0f}, {lost.high:+.0f}])"
