"""Print what `ringkv eval` found: the verdicts, the tables, and the report's path."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ringkv.cli.output import console, print_table, toned

if TYPE_CHECKING:
    from ringkv.evaluation.journal import Record
    from ringkv.evaluation.report.rows import TableRow


def print_study(folder: Path) -> None:
    """Print the results of the answers in a folder, and write its report."""
    from ringkv.evaluation import costs, journal
    from ringkv.evaluation.report.page import write
    from ringkv.evaluation.report.rows import COST_HEAD, COST_LEGEND, HEAD, cost_tables, row
    from ringkv.evaluation.summary import group_scores, task_scores

    records = list(journal.read(folder / journal.NAME))
    _print_verdicts(records)
    for title, found in (("means over tasks", group_scores(records)), ("every task", task_scores(records))):
        if found:
            headers = (*HEAD[:2], *(f"{name} " for name in HEAD[2:]))  # numbers are right-aligned
            print_table(headers, [_toned(row(one)) for one in found], title)
    found_costs = cost_tables(costs.read(folder / journal.NAME))
    for title, rows in found_costs.items():
        print_table((COST_HEAD[0], *(f"{name} " for name in COST_HEAD[1:])), rows, title)
    if found_costs:
        console().print(COST_LEGEND, style="dim")
    console().print(f"\n{write(folder)}")


def _print_verdicts(records: "Sequence[Record]") -> None:
    """Print each comparison: its headline, the full cache's score, and a line for each cell, the best first."""
    from ringkv.evaluation import sentences
    from ringkv.evaluation.verdict import compare

    out = console()
    for found in compare(records):
        out.print(Text(sentences.headline(found), style="bold"), soft_wrap=True)
        out.print(sentences.of_full(found))
        for one in found.verdicts:
            out.print(Text(f"  {one.cell}: ").append(toned(sentences.line(one), one.outcome)), soft_wrap=True)
        out.print()


def _toned(one: "TableRow") -> list[str | Text]:
    return [toned(cell, one.tone) if cell == one.difference else cell for cell in one.cells]
