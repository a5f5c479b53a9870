"""machine: tables in which a machine that all rows share is named once."""

from collections.abc import Sequence

from bench.results import table

COLUMN = "machine"


def machine_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. If all rows have one machine, a sentence below the table names it, not a column."""
    place = head.index(COLUMN)
    names = {row[place] for row in rows}
    if len(names) != 1:
        return table(head, rows)
    return f"{table(_without(head, place), [_without(row, place) for row in rows])}\n\nMachine: {names.pop()}."


def _without(row: Sequence[str], place: int) -> Sequence[str]:
    return (*row[:place], *row[place + 1 :])
