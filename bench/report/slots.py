"""slots: accuracy against bytes: formats of slots times shares of the prompt that are kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2

from bench.report.accuracy import SHARES
from bench.report.chart import Panel, Point, chart
from bench.report.claims import StudyRecords
from bench.results import ResultRow, figures, newest, table
from bench.studies import CHAINS, QWEN, SLOTS
from ringkv.base.cache_spec import PlaneFormat
from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import CellScore, group_scores, task_scores

KEPT = {"full": 1.0, **{f"snapstream {budget}": 1 / int(budget[0]) for budget in SHARES}}
NAMES = {"full": "1", **{f"snapstream {budget}": share for budget, share in SHARES.items()}}
TICKS = {0.0: "1", 1.0: "1/2", 2.0: "1/4", 3.0: "1/8", 4.0: "1/16", 5.0: "1/32"}


def slots(rows: Sequence[ResultRow], answered: StudyRecords) -> str:
    """Return the table of each share, a column for each format: bytes, score, difference from all in 16 bits."""
    sizes, found = _sizes(rows), {(form, cell): one for form, cell, one in _cells(_scored(answered))}
    forms, cells = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))

    def shown(form: PlaneFormat, cell: str) -> str:
        one = found.get((form, cell))
        return f"{sizes[form] * KEPT[cell]:.1%}: {_score(one)} {_difference(one)}".rstrip() if one else ""

    lines = [(NAMES[cell], *(shown(form, cell) for form in forms)) for cell in cells]
    return table(("kept", *(f"`{form}`" for form in forms)), lines)


def chains(answered: StudyRecords) -> str:
    """Return the table of GSM8K by format, with the tokens of its answers."""
    found = {one.cell: one for one in task_scores(records(answered, CHAINS))}
    shown = [(form, found[label("full", form)]) for form in CHAINS.values() if label("full", form) in found]
    lines = [(form, _score(one), _difference(one), f"{one.output_tokens:.0f}") for form, one in shown]
    return table(("`--kv-format`", "GSM8K", "difference", "tokens"), lines)


def picture(rows: Sequence[ResultRow], answered: StudyRecords) -> str:
    """Return the chart of points lost against bytes, a line for each format."""
    sizes, lines = _sizes(rows), dict[str, list[Point]]()
    for form, cell, one in _cells(_scored(answered)):
        found, at = one.over_full, -log2(sizes[form] * KEPT[cell])
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


def _scored(answered: StudyRecords) -> list[CellScore]:
    return group_scores(records(answered, SLOTS))


def _cells(scores: Sequence[CellScore]) -> Iterator[tuple[PlaneFormat, str, CellScore]]:
    found = {one.cell: one for one in scores}
    for form in SLOTS.values():
        for cell in KEPT:
            if one := found.get(label(cell, form)):
                yield form, cell, one


def _sizes(rows: Sequence[ResultRow]) -> Mapping[str, float]:
    """Return the bytes of an entry in each format over those in 16 bits."""
    measured = [one for one in newest(figures(rows, "kv_format"), "model", "machine") if one["model"] == QWEN]
    found = {one["format"]: one["entry_bytes"] for one in measured}
    return {form: size / found["plain"] for form, size in found.items()}


def _score(one: CellScore | None) -> str:
    return "" if one is None or one.mean is None else f"{one.mean:.1f}"


def _difference(one: CellScore) -> str:
    found = one.over_full
    if not found:
        return ""
    interval = f" [{found.low:+.1f}, {found.high:+.1f}]" if found.low < found.high else ""  # all prompts score alike
    return f"{found.mean:+.1f}{interval}"
