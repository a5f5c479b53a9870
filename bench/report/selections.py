"""selections: what pages layers select, beside one selection for all heads and a guess one layer ahead."""

from collections.abc import Sequence

from bench.report.speed import MODELS
from bench.results import ResultRow, figures, newest, table


def selections(rows: Sequence[ResultRow]) -> str:
    """Return the table by model, text and share of entries that a step reads, from the newest run of each."""
    lines = [
        (
            MODELS[one["model"]],
            one["task"],
            f"1/{one['read_one_of']}",
            f"{one['attention']:.1%}",
            f"{one['attention_of_one']:.1%}",
            f"{one['least']:.1%}",
            f"{one['least_of_one']:.1%}",
            f"{one['chosen']:.0f}",
            f"{one['new']:.1f}",
            f"{one['found']:.0%}",
            f"{one['wasted']:.1f}",
        )
        for one in sorted(newest(figures(rows, "selections"), "model", "read_one_of"), key=_order)
    ]
    head = ("model", "text", "read", "attention", "of one selection", "least", "of one selection")
    return table((*head, "pages", "new", "guessed of them", "wasted"), lines)


def _order(one: ResultRow) -> tuple[int, int]:
    return [*MODELS].index(one["model"]), one["read_one_of"]
