"""slots: accuracy against bytes: formats of slots times shares of the prompt that are kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import NamedTuple

from bench.report.accuracy import SHARES
from bench.report.chart import Panel, Point, chart
from bench.report.claims import StudyRecords
from bench.results import ResultRow, figures, newest, table
from bench.studies import CHAINS, CODE, QWEN, READING, SLOTS, STUDIED
from ringkv.base.cache_spec import PlaneFormat
from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import CellScore, group_scores, task_scores

KEPT = {"full": 1.0, **{f"snapstream {budget}": 1 / int(budget[0]) for budget in SHARES}}
NAMES = {"full": "1", **{f"snapstream {budget}": share for budget, share in SHARES.items()}}
TICKS = {0.0: "1", 1.0: "1/2", 2.0: "1/4", 3.0: "1/8", 4.0: "1/16", 5.0: "1/32"}


class Suite(NamedTuple):
    """Tasks whose question is in one place, answered with slots in each format."""

    name: str
    studies: Mapping[str, PlaneFormat]
    place: str = "inside"

    def scores(self, answered: StudyRecords) -> Mapping[PlaneFormat, Mapping[str, CellScore]]:
        """Return the mean over the tasks under each cell, by format."""
        own = [one for one in records(answered, self.studies) if one.place == self.place]
        means = {one.cell: one for one in group_scores(own)}
        labels = {form: {cell: label(cell, form) for cell in KEPT} for form in self.studies.values()}
        return {
            form: {cell: means[name] for cell, name in named.items() if name in means} for form, named in labels.items()
        }


NEEDLES = Suite("RULER, 2k", SLOTS)
SUITES = (NEEDLES, Suite("LongBench, 4k", READING))


def slots(rows: Sequence[ResultRow], answered: StudyRecords) -> str:
    """Return the table of suites and shares: bytes, score and difference from all in 16 bits for each format."""
    sizes = _sizes(rows)
    head = ("suite", "kept", *(f"`{form}`" for form in STUDIED))
    return table(head, [line for suite in SUITES for line in _lines(suite.name, suite.scores(answered), sizes)])


def chains(answered: StudyRecords) -> str:
    """Return the table of GSM8K and HumanEval by format, with the tokens of their answers."""
    problems, programs = _of_everything(answered, CHAINS), _of_everything(answered, CODE)
    lines = [(form, *_answers(one), *_answers(programs.get(form))) for form, one in problems.items()]
    return table(("`--kv-format`", "GSM8K", "difference", "tokens", "HumanEval", "difference", "tokens"), lines)


def picture(rows: Sequence[ResultRow], answered: StudyRecords) -> str:
    """Return the chart of points lost against bytes, a line for each format."""
    sizes = _sizes(rows)
    lines = {
        form: [_point(sizes[form] * KEPT[cell], one) for cell, one in found.items()]
        for form, found in NEEDLES.scores(answered).items()
        if found
    }
    panel = Panel("RULER, 2k, question in the prompt", lines, TICKS, "of the bytes of a full cache in 16 bits")
    return chart("Accuracy against bytes: points from the full cache, Qwen2.5-Coder-1.5B", [panel])


def records(answered: StudyRecords, studies: Mapping[str, PlaneFormat]) -> list[Record]:
    """Return the answers of studies that differ in the format alone. The format is part of each cell's label."""
    return [
        replace(one, cell=label(one.cell, form)) for study, form in studies.items() for one in answered.get(study, ())
    ]


def label(cell: str, form: PlaneFormat) -> str:
    return cell if form == "plain" else f"{cell} {form}"


def _lines(
    name: str, scores: Mapping[PlaneFormat, Mapping[str, CellScore]], sizes: Mapping[str, float]
) -> Iterator[tuple[str, ...]]:
    for cell, share in KEPT.items():
        found = {form: of_form[cell] for form, of_form in scores.items() if cell in of_form}
        if found:
            yield name, NAMES[cell], *(_cell(sizes[form] * share, found.get(form)) for form in STUDIED)


def _cell(size: float, one: CellScore | None) -> str:
    return f"{size:.1%}: {_score(one)} {_difference(one)}".rstrip() if one else ""


def _of_everything(answered: StudyRecords, studies: Mapping[str, PlaneFormat]) -> Mapping[PlaneFormat, CellScore]:
    """Return the score of the one task by format, with nothing evicted."""
    found = {one.cell: one for one in task_scores(records(answered, studies))}
    return {form: found[label("full", form)] for form in studies.values() if label("full", form) in found}


def _answers(one: CellScore | None) -> tuple[str, str, str]:
    return (_score(one), _difference(one), f"{one.output_tokens:.0f}") if one else ("", "", "")


def _point(size: float, one: CellScore) -> Point:
    found, at = one.over_full, -log2(size)
    return Point(at, found.mean, found.low, found.high) if found else Point(at, 0.0)


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
