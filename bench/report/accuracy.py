"""accuracy: the scores of all studies as one data file, and the summary on the pages."""

import csv
import io
from collections.abc import Mapping, Sequence
from math import isfinite

from bench.answers import about, records
from bench.report.chart import Panel, Point, chart
from bench.report.claims import KVPRESS, StudyRecords
from bench.results import table
from bench.studies import STUDIES
from ringkv.evaluation.summary import CellScore, group_scores, task_scores

HEAD = (
    "study", "model", "task", "question", "length", "cache", "prompts", "failed", "score", "difference", "low", "high",
    "kept", "answer_tokens", "ring_wraps",
)  # fmt: skip
SHARES = {"2x": "1/2", "4x": "1/4", "8x": "1/8"}
SHOWN = {"snapstream": tuple(SHARES), "streaming": ("4x",)}  # budgets in the table, by policy
CACHES = {  # name -> label, with {} for the budget
    "snapstream": "snapstream {} window=64",
    "snapstream, kvpress's settings": f"snapstream {{}} {KVPRESS}",
    "snapstream, KeyDiff": "snapstream {} select=keydiff",
    "streaming": "streaming {}",
}
Groups = Mapping[str, Sequence[CellScore]]  # means over tasks, by study


def answers() -> StudyRecords:
    return {name: records(name) for name in STUDIES}


def groups(answered: StudyRecords) -> Groups:
    return {name: group_scores(found) for name, found in answered.items()}


def data(answered: StudyRecords, means: Groups) -> str:
    """Return a CSV with a line for each task of each study under each cache, and for each mean over a study's tasks.

    Scores are percent, or perplexity for wikitext. `difference` is the difference from the full cache on the same
    prompts, with the ends of its 95% interval: in percent points, or in percent of the perplexity.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(HEAD)
    for study, found in answered.items():
        model = about(study)["model"] if found else ""
        lines.writerows((study, model, *_line(one)) for one in (*means[study], *task_scores(found)))
    return text.getvalue()


def _line(one: CellScore) -> tuple[object, ...]:
    difference = one.over_full
    ends = (difference.low, difference.high) if difference and isfinite(difference.low) else ("", "")
    return (
        one.task, one.place, one.length or "", one.cell, one.count, one.failed, _rounded(one.mean),
        _rounded(difference.mean if difference else None), *map(_rounded, ends),
        _rounded(one.kept), _rounded(one.output_tokens), _rounded(one.ring_wraps),
    )  # fmt: skip


def _rounded(value: float | str | None) -> float | str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else value or ""


COLUMNS = (  # title, study, place of the question, suffix of snapstream's labels
    ("RULER's needles, 1.5B", "default-qwen", "inside", ""),
    ("RULER, 1.5B", "choosing-window-qwen", "inside", ""),
    ("LongBench, 1.5B", "choosing-longbench-qwen", "inside", ""),
    ("RULER, 135M", "ruler-smollm2", "inside", ""),
    ("RULER, 1.5B, question after, window 64", "ruler-qwen", "after", " window=64"),
)


def summary(means: Groups) -> str:
    """Return the table of full cache, our default and StreamingLLM: scores, and differences from the full cache."""
    full = [_find(means[study], place, "full") for _, study, place, _ in COLUMNS]
    lines = [("full", *map(_score, full))]
    for policy, budgets in SHOWN.items():
        for budget in budgets:
            ends = [end if policy == "snapstream" else "" for *_, end in COLUMNS]
            found = [
                _find(means[one[1]], one[2], f"{policy} {budget}{end}") for one, end in zip(COLUMNS, ends, strict=True)
            ]
            lines.append((f"{policy} {SHARES[budget]}", *map(_score, found)))
    head = [f"{column[0]} ({one.count} prompts)" for column, one in zip(COLUMNS, full, strict=True) if one]
    return table(("cache", *head), lines)


def scores(means: Groups) -> Mapping[str, Sequence[str]]:
    """Return the scores with a quarter kept and with the full cache, by benchmark."""
    studies = {"LongBench": "choosing-longbench-qwen", "RULER's needles": "default-qwen"}
    return {
        f"{name}, {means[study][0].count} prompts": [
            _score(_find(means[study], "inside", label)) for label in ("snapstream 4x", "full")
        ]
        for name, study in studies.items()
    }


def _score(one: CellScore | None) -> str:
    if one is None or one.mean is None:
        return ""
    lost = one.over_full
    return f"{one.mean:.1f}" + (f" ({lost.mean:+.1f} [{lost.low:+.1f}, {lost.high:+.1f}])" if lost else "")


def _find(found: Sequence[CellScore], place: str, label: str) -> CellScore | None:
    return next((one for one in found if one.cell == label and one.place == place), None)


def picture(means: Groups) -> str:
    """Return a chart of points lost against the budget, with intervals."""
    ruler = means["ruler-qwen"]
    panels = [
        _panel("RULER's needles, 40 prompts, default", means["default-qwen"], default="snapstream {}"),
        _panel("LongBench, 97 prompts, window 64", means["longbench-qwen"]),
        _panel("RULER, 117 prompts, window 64", ruler),
        _panel("RULER, window 64, question after compression", ruler, "after"),
    ]
    return chart("Accuracy against cache budget: points from the full cache, Qwen2.5-Coder-1.5B", panels)


def _panel(title: str, found: Sequence[CellScore], place: str = "inside", default: str = CACHES["snapstream"]) -> Panel:
    lines = {name: _points(found, place, label) for name, label in {**CACHES, "snapstream": default}.items()}
    return Panel(title, lines, dict(enumerate(SHARES.values())), "of the prompt kept")


def _points(found: Sequence[CellScore], place: str, label: str) -> list[Point]:
    cells = [_find(found, place, label.format(budget)) for budget in SHARES]
    lost = [(x, one.over_full) for x, one in enumerate(cells) if one and one.over_full]
    return [Point(x, one.mean, one.low, one.high) for x, one in lost]
