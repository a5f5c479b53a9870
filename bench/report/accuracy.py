"""accuracy: the summary of the accuracy studies: full cache, our default and StreamingLLM."""

from collections.abc import Mapping, Sequence

from bench.answers import records
from bench.results import table
from ringkv.evaluation.summary import CellScore, group_scores

SHARES = {"2x": "1/2", "4x": "1/4", "8x": "1/8"}
SHOWN = {"snapstream": tuple(SHARES), "streaming": ("4x",)}  # budgets in the table, by policy
COLUMNS = (  # title, study, place of the question, suffix of snapstream's labels
    ("RULER's needles, 1.5B", "default-qwen", "inside", ""),
    ("RULER, 1.5B", "choosing-window-qwen", "inside", ""),
    ("LongBench, 1.5B", "choosing-longbench-qwen", "inside", ""),
    ("RULER, 135M", "ruler-smollm2", "inside", ""),
    ("RULER, 1.5B, question after, window 64", "ruler-qwen", "after", " window=64"),
)
Groups = Mapping[str, Sequence[CellScore]]  # means over tasks, by study


def means() -> Groups:
    return {study: group_scores(records(study)) for _, study, *_ in COLUMNS}


def summary(means: Groups) -> str:
    """Return the table of scores, and of differences from the full cache."""
    full = [_find(means[study], place, "full") for _, study, place, _ in COLUMNS]
    lines = [("full", *map(_score, full))]
    for policy, budgets in SHOWN.items():
        for budget in budgets:
            labels = [f"{policy} {budget}{suffix if policy == 'snapstream' else ''}" for *_, suffix in COLUMNS]
            columns = zip(COLUMNS, labels, strict=True)
            shown = (_score(_find(means[study], place, label)) for (_, study, place, _), label in columns)
            lines.append((f"{policy} {SHARES[budget]}", *shown))
    head = [f"{column[0]} ({score.count} prompts)" for column, score in zip(COLUMNS, full, strict=True) if score]
    return table(("cache", *head), lines)


def _score(score: CellScore | None) -> str:
    if score is None or score.mean is None:
        return ""
    lost = score.over_full
    return f"{score.mean:.1f}" + (f" ({lost.mean:+.1f} [{lost.low:+.1f}, {lost.high:+.1f}])" if lost else "")


def _find(scores: Sequence[CellScore], place: str, label: str) -> CellScore | None:
    return next((score for score in scores if score.cell == label and score.place == place), None)
