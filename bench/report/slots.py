"""slots: accuracy against bytes: formats of slots times shares of the prompt that are kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2

from bench.report.accuracy import SHARES
from bench.report.chart import Panel, Point, chart
from bench.report.claims import StudyRecords
from bench.results import ResultRow, figures, newest, table
from bench.studies import CHAINS, CODE, QWEN, SLOTS
from ringkv.base.cache_spec import PlaneFormat
from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import CellScore, group_scores, task_scores

Scorer = Callable[[Sequence[Record]], list[CellScore]]
KEPT = {"full": 1.0, **{f"snapstream {budget}": 1 / int(budget[0]) for budget in SHARES}}
NAMES = {"full": "1", **{f"snapstream {budget}": share for budget, share in SHARES.items()}}
TICKS = {0.0: "1", 1.0: "1/2", 2.0: "1/4", 3.0: "1/8", 4.0: "1/16", 5.0: "1/32"}


def slots(rows: Sequence[ResultRow], answered: StudyRecords) -> str:
    """Return the table of each format and share: bytes, and scores with differences from the full cache in 16 bits."""
    sizes, suites = _sizes(rows), _measured(answered, {"RULER, 2k": SLOTS}, group_scores)
    lines = [
        (form, NAMES[cell], f"{sizes[form] * KEPT[cell]:.1%}", *_scores(suites, form, cell))
        for form, cell in _cells(suites["RULER, 2k"])
    ]
    return table(("`--kv-format`", "kept", "bytes", *_columns(suites)), lines)


def chains(answered: StudyRecords) -> str:
    """Return the table of GSM8K and HumanEval by format, with the tokens of GSM8K's answers."""
    suites = _measured(answered, {"GSM8K": CHAINS, "HumanEval": CODE}, task_scores)
    shown = [form for form in CHAINS.values() if label("full", form) in suites["GSM8K"]]
    lines = [(form, *_scores(suites, form, "full"), _tokens(suites["GSM8K"], form)) for form in shown]
    return table(("`--kv-format`", *_columns(suites), "tokens of GSM8K"), lines)


def picture(rows: Sequence[ResultRow], answered: StudyRecords) -> str:
    """Return the chart of points lost against bytes, a line for each format."""
    sizes, lines = _sizes(rows), dict[str, list[Point]]()
    scores = _by_label(group_scores(records(answered, SLOTS)))
    for form, cell in _cells(scores):
        found, at = scores[label(cell, form)].over_full, -log2(sizes[form] * KEPT[cell])
        point = Point(at, found.mean, found.low, found.high) if found else Point(at, 0.0)
        lines.setdefault(form, []).append(point)
    panel = Panel("RULER, 2k, question in the prompt", lines, TICKS, "of the bytes of a full cache in 16 bits")
    return chart("Accuracy against bytes: points from the full cache, Qwen2.5-Coder-1.5B", [panel])


def records(answered: StudyRecords, studies: Mapping[str, PlaneFormat]) -> list[Record]:
    """Return the answers of studies that differ in the format alone. The format is part of each cell's label."""
    return [
        replace(one, cell=label(one.cell, form)) for study, form in studies.items() for one in answered.get(study, ())
    ]


def label(cell: str, form: PlaneFormat) -> str:
    return cell if form == "plain" else f"{cell} {form}"


def _measured(
    answered: StudyRecords, suites: Mapping[str, Mapping[str, PlaneFormat]], scores: Scorer
) -> Mapping[str, Mapping[str, CellScore]]:
    """Return the scores of each suite that was measured, by label."""
    found = {name: _by_label(scores(records(answered, studies))) for name, studies in suites.items()}
    return {name: own for name, own in found.items() if own}


def _columns(suites: Mapping[str, Mapping[str, CellScore]]) -> tuple[str, ...]:
    return tuple(column for name in suites for column in (name, "difference"))


def _scores(suites: Mapping[str, Mapping[str, CellScore]], form: PlaneFormat, cell: str) -> tuple[str, ...]:
    return tuple(shown for own in suites.values() for shown in _both(own, form, cell))


def _by_label(scores: Sequence[CellScore]) -> Mapping[str, CellScore]:
    return {one.cell: one for one in scores}


def _cells(scores: Mapping[str, CellScore]) -> Iterator[tuple[PlaneFormat, str]]:
    """Yield each format and share that has a score."""
    return ((form, cell) for form in SLOTS.values() for cell in KEPT if label(cell, form) in scores)


def _both(scores: Mapping[str, CellScore], form: PlaneFormat, cell: str) -> tuple[str, str]:
    """Return a score and its difference from the full cache in 16 bits; nothing if it was not measured."""
    one = scores.get(label(cell, form))
    return (_score(one), _difference(one)) if one else ("", "")


def _tokens(scores: Mapping[str, CellScore], form: PlaneFormat) -> str:
    return f"{scores[label('full', form)].output_tokens:.0f}"


def _sizes(rows: Sequence[ResultRow]) -> Mapping[str, float]:
    """Return the bytes of an entry in each format over those in 16 bits."""
    measured = [one for one in newest(figures(rows, "kv_format"), "model", "machine") if one["model"] == QWEN]
    found = {one["format"]: one["entry_bytes"] for one in measured}
    return {form: size / found["plain"] for form, size in found.items()}


def _score(one: CellScore) -> str:
    return "" if one.mean is None else f"{one.mean:.1f}"


def _difference(one: CellScore) -> str:
    found = one.over_full
    if not found:
        return ""
    interval = f" [{found.low:+.1f}, {found.high:+.1f}]" if found.low < found.high else ""  # all prompts score alike
    return f"{found.mean:+.1f}{interval}"
