"""position_chart: the perplexity of what follows a compressed prefix, against its position."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from ringkv.evaluation.cells import FULL
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.chart import Chart, Point, Series

BINS = 16


def position_chart(records: Sequence[Record]) -> Chart | None:
    """Return a chart with a series for each cell; None without log-probabilities."""
    losses = positions(records)
    if not losses:
        return None
    series = [Series(cell, _points(cell, values)) for cell, values in losses.items()]
    return Chart(
        alt=f"Perplexity of {len(losses)} caches against the distance from the compressed prefix",
        series=series,
        x_label="tokens after the prefix",
        y_label="perplexity, lower is better",
        x_ticks=[one.x for one in series[0].points],
        number=lambda tokens: f"{tokens:,.0f}",
    )


def positions(records: Sequence[Record]) -> Mapping[str, Sequence[float]]:
    """Return the mean log-probability at each position, by cell, up to the shortest of the scored texts."""
    by_cell: dict[str, list[Record]] = defaultdict(list)
    for one in records:
        if one.logprobs:
            by_cell[one.cell].append(one)
    most = min((len(one.logprobs) for some in by_cell.values() for one in some), default=0)
    order = sorted(by_cell, key=lambda cell: cell != FULL)
    return {cell: np.mean([one.logprobs[:most] for one in by_cell[cell]], axis=0).tolist() for cell in order}


def _points(cell: str, values: Sequence[float]) -> list[Point]:
    parts = np.array_split(np.asarray(values, dtype=float), min(BINS, len(values)))
    ends = np.cumsum([len(part) for part in parts])
    found = ((float(end), float(np.exp(-part.mean()))) for end, part in zip(ends, parts, strict=True))
    return [Point(end, value, -inf, inf, f"{cell}: {value:.2f} up to token {end:,.0f}") for end, value in found]
