"""page: the report of a folder of answers, as one HTML page with the means first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape

from ringkv.evaluation import journal, kept
from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.cells import FULL
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report import plots
from ringkv.evaluation.summary import CellScore, depths, group_scores, task_scores
from ringkv.evaluation.tasks.catalogue import TASKS

NAME = "report.html"
HEAD = ("task", "cache", "prompts", "score", "from full", "held", "answer", "wraps")  # the last two are averages
SHARE = "%"
AFTER = {"inside": "", "after": ", question after", "next": ", question in the next turn"}
Item = TypeVar("Item")
Key = TypeVar("Key")


class TableRow(NamedTuple):
    """Cells of the table, as text. tone: the CSS class of the difference: better, worse or noise."""

    task: str
    cell: str
    prompts: int
    mean: str
    difference: str
    tone: str
    kept: str
    answer: str
    wraps: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells in the order of `HEAD`."""
        return self.task, self.cell, str(self.prompts), self.mean, self.difference, self.kept, self.answer, self.wraps


def write(folder: Path, to: Path | None = None) -> Path:
    """Write the report of a folder's journal to that folder or to another. Returns its path."""
    path = folder / journal.NAME
    records = list(journal.read(path))
    environment = Environment(loader=PackageLoader("ringkv.evaluation.report"), autoescape=select_autoescape(["html"]))
    text = environment.get_template("page.html").render(
        about=journal.about(path),
        groups=[row(one) for one in group_scores(records)],
        rows=[row(one) for one in task_scores(records)],
        head=HEAD,
        failures=sorted({(one.cell, one.error) for one in records if one.error}),
        plots=list(plot_sections(records, folder)),
        answers=len(records),
    )
    report = (to or folder) / NAME
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(text, encoding="utf-8")
    return report


def row(figure: CellScore) -> TableRow:
    return TableRow(
        task=name_of(figure),
        cell=figure.cell,
        prompts=figure.count,
        mean="failed" if figure.mean is None else f"{figure.mean:.2f}" if _is_loss(figure) else f"{figure.mean:.1f}",
        difference=difference(figure.over_full, SHARE if _is_loss(figure) else ""),
        tone=_tone(figure),
        kept=f"{100 * figure.kept:.0f}%" if figure.count else "",
        answer=f"{figure.output_tokens:,.0f}" if figure.count else "",
        wraps=f"{figure.ring_wraps:.1f}" if figure.ring_wraps else "",
    )


def name_of(figure: CellScore) -> str:
    """The task with the place of its question and the length of its prompts."""
    where = "" if _is_loss(figure) else AFTER[figure.place]
    length = "" if figure.length is None else f", {figure.length:,}"
    return f"{figure.task}{where}{length}"


def difference(one: Interval | None, unit: str = "") -> str:
    """Format a mean with its interval; "" for None."""
    if one is None:
        return ""
    mean = f"{one.mean:+.1f}{unit}"
    return f"{mean} [{one.low:+.1f}, {one.high:+.1f}]" if isfinite(one.low) else mean


def plot_sections(records: Sequence[Record], folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (heading, SVGs) for each kind of plot that has data."""
    of_tasks = _group_by(task_scores(records), lambda one: (one.task, one.place, one.length))
    of_groups = _group_by(group_scores(records), lambda one: (one.task, one.place, one.length))
    several = [some for some in (*of_groups.values(), *of_tasks.values()) if _has_budgets(some)]
    budgets = [plots.against_budget(name_of(some[0]), some) for some in several]
    if budgets:
        yield "Score against budget", budgets
    needles = sorted(depths(records), key=lambda one: (one[1] != "inside", one[0] != FULL, one[0]))
    if found := [plots.heat(cell + AFTER[place], grid) for cell, place, grid in needles]:
        yield "Needles found, in percent, by depth and length", found
    if losses := positions(records):
        yield "Perplexity of what follows a compressed prefix", [plots.over_position("WikiText-2", losses)]
    if maps := [plots.kept_map(one.cell, one.shares, one.heads) for one in kept.read(folder) if one.cell != FULL]:
        yield "What one prompt kept, by layer and head", maps


def positions(records: Sequence[Record]) -> Mapping[str, Sequence[float]]:
    """Return the mean log-probability at each position, by cell, up to the shortest of the scored texts."""
    by_cell = _group_by([one for one in records if one.logprobs], lambda one: one.cell)
    most = min((len(one.logprobs) for one in records if one.logprobs), default=0)
    order = sorted(by_cell, key=lambda cell: cell != FULL)
    return {cell: np.mean([one.logprobs[:most] for one in by_cell[cell]], axis=0).tolist() for cell in order}


def _has_budgets(figures: Sequence[CellScore]) -> bool:
    """Whether any policy has more than one budget."""
    return len({plots.policy_of(one.cell) for one in figures}) < len(figures)


def _is_loss(figure: CellScore) -> bool:
    return figure.task in TASKS and TASKS[figure.task].is_loss


def _tone(figure: CellScore) -> str:
    if figure.over_full is None:
        return ""
    if figure.over_full.is_noise:
        return "noise"
    is_more = figure.over_full.mean > 0
    return "better" if is_more != _is_loss(figure) else "worse"


def _group_by(items: Sequence[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
