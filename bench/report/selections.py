"""selections: what pages layers select, beside one selection for all heads and a guess one layer ahead."""

from collections.abc import Sequence
from typing import Any

from bench.report.speed import MODELS
from bench.results import ResultRow, figures, newest, table

SHARES = {
    "attention": "attention",
    "attention_of_one": "of one selection",
    "least": "least",
    "least_of_one": "of one selection",
}
PAGES = {"chosen": "pages", "new": "new", "wasted": "wasted"}
HEAD = (*SHARES.values(), *PAGES.values(), "new pages guessed")


def cells(one: ResultRow | dict[str, Any]) -> tuple[str, ...]:
    """Return a figure's cells with `HEAD`: shares, pages of a head and a step, and a share of these."""
    shares, pages = (f"{one[name]:.1%}" for name in SHARES), (f"{one[name]:.1f}" for name in PAGES)
    return (*shares, *pages, f"{one['found']:.0%}")


def selections(rows: Sequence[ResultRow]) -> str:
    """Return the table by model, text and share of entries that a step reads, from the newest run of each."""
    every = sorted(newest(figures(rows, "selections"), "model", "read_one_of"), key=_order)
    lines = [(MODELS[one["model"]], one["task"], f"1/{one['read_one_of']}", *cells(one)) for one in every]
    return table(("model", "text", "read", *HEAD), lines)


def _order(one: ResultRow) -> tuple[int, int]:
    return [*MODELS].index(one["model"]), one["read_one_of"]
