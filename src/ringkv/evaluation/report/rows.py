"""rows: the report's tables as text, which the terminal prints too."""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.costs import Cost
from ringkv.evaluation.outcome import WORDS, Outcome, outcome
from ringkv.evaluation.summary import CellScore
from ringkv.evaluation.tasks.catalogue import TASKS

HEAD = ("task", "cache", "prompts", "score", "from full", "held", "answer", "wraps")  # the last two are averages
SHARE = "%"
AFTER = {"inside": "", "after": ", question after", "next": ", question in the next turn"}
COST_HEAD = ("cache", "held", "a step reads", "recalled", "prefill", "step")  # entries, pages, seconds
COST_LEGEND = (
    '"held" and "a step reads" are entries of each key-value head, "recalled" its pages that a step had to fetch. '
    "All caches ran in one engine."
)


class TableRow(NamedTuple):
    """Cells of the table, as text. tone: what the difference says; "" for the full cache."""

    task: str
    cell: str
    prompts: int
    mean: str
    difference: str
    tone: Outcome | str
    kept: str
    answer: str
    wraps: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells in the order of `HEAD`."""
        return self.task, self.cell, str(self.prompts), self.mean, self.difference, self.kept, self.answer, self.wraps


def row(figure: CellScore) -> TableRow:
    loss = is_loss(figure)
    tone = outcome(figure.over_full, figure.count, more_is_better=not loss) if figure.over_full else ""
    told = difference(figure.over_full, SHARE if loss else "")
    return TableRow(
        task=name_of(figure),
        cell=figure.cell,
        prompts=figure.count,
        mean="failed" if figure.mean is None else f"{figure.mean:.2f}" if loss else f"{figure.mean:.1f}",
        difference=f"{told}, {WORDS['few']}" if tone == "few" else told,
        tone=tone,
        kept=f"{100 * figure.kept:.0f}%" if figure.count else "",
        answer=f"{figure.output_tokens:,.0f}" if figure.count else "",
        wraps=f"{figure.ring_wraps:.1f}" if figure.ring_wraps else "",
    )


def cost_row(one: Cost) -> tuple[str, ...]:
    """Return the cells of a row with `COST_HEAD`."""
    recalled = f"{one.recalled:,.1f}" if one.recalled else ""
    return one.cell, f"{one.held:,}", f"{one.read:,}", recalled, f"{one.prefill:.2f} s", f"{1e3 * one.step:.1f} ms"


def cost_tables(found: Sequence[Cost]) -> dict[str, list[tuple[str, ...]]]:
    """Return rows with `COST_HEAD` by title: those of the same prompt and steps are comparable."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for one in found:
        if one.step:
            engine = f" ({one.engine})" if one.engine else ""
            title = f"costs of a prompt of {one.prompt:,} tokens; steps of {one.requests} requests{engine}"
            tables.setdefault(title, []).append(cost_row(one))
    return tables


def name_of(figure: CellScore) -> str:
    """The task with the place of its question and the length of its prompts."""
    where = "" if is_loss(figure) else AFTER[figure.place]
    length = "" if figure.length is None else f", {figure.length:,}"
    return f"{figure.task}{where}{length}"


def difference(one: Interval | None, unit: str = "") -> str:
    """Format a mean with its interval; "" for None."""
    if one is None:
        return ""
    mean = f"{one.mean:+.1f}{unit}"
    return f"{mean} [{one.low:+.1f}, {one.high:+.1f}]" if isfinite(one.low) else mean


def is_loss(figure: CellScore) -> bool:
    return figure.task in TASKS and TASKS[figure.task].is_loss
