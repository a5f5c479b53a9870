"""page: the report of a folder of answers, as one HTML page with the verdict first."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, select_autoescape

from ringkv.base.palette import OUTCOMES, PARTS, POLICIES, SURFACE, Colour
from ringkv.evaluation import costs, journal, sentences
from ringkv.evaluation.advice import Advice
from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.journal import Record
from ringkv.evaluation.outcome import LEGEND, WORDS
from ringkv.evaluation.report import chart
from ringkv.evaluation.report.kept_map import kept_maps
from ringkv.evaluation.report.needle_grid import needle_grids
from ringkv.evaluation.report.position_chart import position_chart
from ringkv.evaluation.report.rows import AFTER, COST_HEAD, COST_LEGEND, HEAD, TableRow, cost_tables, row
from ringkv.evaluation.report.score_chart import score_chart
from ringkv.evaluation.report.svg import line, tag, view_box
from ringkv.evaluation.summary import group_scores, task_scores
from ringkv.evaluation.verdict import Comparison, Verdict, compare

NAME = "report.html"
WIDE, NARROW = (960.0, 400.0), (370.0, 300.0)  # pixels of a chart
SHOWN = 8  # verdicts before the others are folded
WIDTH, HEIGHT, END = 224.0, 16.0, 110.0  # pixels, and the percent at the right end


class VerdictLine(NamedTuple):
    """tone: CSS class of the outcome. bar: SVG of the interval."""

    cell: str
    tone: str
    text: str
    bar: str


class VerdictSection(NamedTuple):
    """One comparison: its headline, what the full cache scores, the best lines, and those that are folded."""

    name: str
    headline: str
    tone: str
    full: str
    first: Sequence[VerdictLine]
    others: Sequence[VerdictLine]
    charts: Sequence[str]


class Table(NamedTuple):
    title: str
    rows: Sequence[TableRow]


def write(folder: Path, to: Path | None = None, advice: Advice | None = None) -> Path:
    """Write the report of a folder's journal, with advice if there is any, to that folder or to another.

    Returns its path.
    """
    environment = Environment(
        loader=PackageLoader("ringkv.evaluation.report"),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    report = (to or folder) / NAME
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(environment.get_template("page.html").render(_content(folder), advice=advice), encoding="utf-8")
    return report


def _content(folder: Path) -> Mapping[str, Any]:
    path = folder / journal.NAME
    records, about = list(journal.read(path)), journal.about(path)
    entry_bytes = next((one["entry_bytes"] for one in about["sessions"] if "entry_bytes" in one), None)
    positions = position_chart(records)
    return {
        "about": about,
        "answers": len(records),
        "colours": variables(),
        "failures": failures(records),
        "verdicts": [_section(one, entry_bytes) for one in compare(records)],
        "needles": needle_grids(records),
        "positions": _both_widths(positions) if positions else (),
        "kept": kept_maps(folder),
        "tables": list(_tables(records)),
        "costs": cost_tables(costs.read(path)),
        "cost_head": COST_HEAD,
        "cost_legend": COST_LEGEND,
        "head": HEAD,
        "legend": LEGEND,
        "words": WORDS,
    }


def failures(records: Sequence[Record]) -> list[tuple[str, str, int]]:
    """Return (cell, reason, number of answers) of what failed; of reasons that differ in numbers, the first."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in records:
        if one.error:
            found[one.cell, re.sub(r"\d[\d,]*", "", one.error)].append(one.error)
    return [(cell, reasons[0], len(reasons)) for (cell, _), reasons in sorted(found.items())]


def _section(found: Comparison, entry_bytes: int | None) -> VerdictSection:
    scored = score_chart(found, entry_bytes)
    lines = [VerdictLine(one.cell, one.outcome, sentences.line(one), _bar(one)) for one in found.verdicts]
    return VerdictSection(
        name=f"Verdict{', perplexity' if found.is_loss else AFTER[found.place]}",
        headline=sentences.headline(found),
        tone=found.most_useful.outcome,
        full=sentences.of_full(found),
        first=lines[:SHOWN],
        others=lines[SHOWN:],
        charts=_both_widths(scored) if scored else (),
    )


def _bar(one: Verdict) -> str:
    return interval_bar(one.share, is_hollow=one.outcome == "few") if one.share else ""


def _both_widths(one: chart.Chart) -> tuple[str, str]:
    """Return a chart for screens and one for phones; the style sheet shows one of them."""
    return chart.draw(one, *WIDE), chart.draw(one, *NARROW, is_narrow=True)


def _tables(records: Sequence[Record]) -> Iterator[Table]:
    for title, found in (("Means over tasks", group_scores(records)), ("Every task", task_scores(records))):
        if found:
            yield Table(title, [row(one) for one in found])


def interval_bar(share: Interval, is_hollow: bool) -> str:
    """Draw a share in percent, hollow for too few prompts. A screen reader skips it, as its figures are beside it."""
    middle, x = HEIGHT / 2, _x(share.mean)
    parts = [line(0, middle, WIDTH, middle, class_="grid"), line(_x(100), 1, _x(100), HEIGHT - 1, class_="reference")]
    if isfinite(share.low):
        parts.append(line(_x(share.low), middle, _x(share.high), middle, class_="reach"))
    dot = tag("circle", cx=x, cy=middle, r=4.5, class_="dot hollow" if is_hollow else "dot")
    return tag("svg", *parts, dot, class_="bar", viewBox=view_box(WIDTH, HEIGHT), aria_hidden="true")


def _x(percent: float) -> float:
    return 5 + (WIDTH - 10) * min(max(percent, 0.0), END) / END


def variables() -> str:
    """Return CSS that defines --NAME for each colour, and a class for each policy that sets --own."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in _named())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in _named())
    own = "".join(f".p{number}{{--own:var(--policy-{number})}}" for number in range(len(POLICIES)))
    return f":root{{color-scheme:light dark;{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{own}"


def _named() -> Iterator[tuple[str, Colour]]:
    for group in (SURFACE, PARTS, OUTCOMES):
        yield from group.items()
    for number, colour in enumerate(POLICIES):
        yield f"policy-{number}", colour
