"""chart: draws series of points with intervals, as SVG whose text is text and whose colours follow the page's.

A wide chart names its series beside their last points, a narrow one below.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from ringkv.base.palette import POLICIES
from ringkv.evaluation.report.scale import Scale, apart, clusters, round_ends
from ringkv.evaluation.report.svg import line, tag, text, title, view_box

TOP, LEFT, BELOW, LABEL = 14.0, 46.0, 44.0, 17.0  # pixels; a label is one line
LETTER, LONGEST = 7.8, 44  # pixels of a label's letter, and letters
SHAPES = (  # within -5 .. 5
    "M0-5A5 5 0 1 1 0 5A5 5 0 1 1 0-5Z",
    "M-4.4-4.4H4.4V4.4H-4.4Z",
    "M0-5.6L5.4 4.2H-5.4Z",
    "M0-6L6 0L0 6L-6 0Z",
    "M0 5.6L5.4-4.2H-5.4Z",
    "M-1.8-5.4H1.8V-1.8H5.4V1.8H1.8V5.4H-1.8V1.8H-5.4V-1.8H-1.8Z",
    "M-4.2 5.4L0 2.6L4.2 5.4L2.7.6L6.2-2.3L1.8-2.4L0-6.4L-1.8-2.4L-6.2-2.3L-2.7.6Z",
)


class Point(NamedTuple):
    """low, high: ends of the interval; infinite if there is none. is_hollow: there are too few prompts to tell."""

    x: float
    y: float
    low: float
    high: float
    about: str
    is_hollow: bool = False


class Series(NamedTuple):
    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """alt: what a screen reader says. number: shows one of x_ticks. x_of: log2 for a log scale. reference: a
    horizontal line. dodge: pixels between points of about the same x, which stand side by side.
    """

    alt: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    x_ticks: Sequence[float]
    number: Callable[[float], str]
    x_of: Callable[[float], float] = float
    reference: tuple[str, float] | None = None
    dodge: float = 0.0


@dataclass(frozen=True)
class _Frame:
    x: Scale
    y: Scale
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]


def draw(chart: Chart, width: float, height: float, is_narrow: bool = False) -> str:
    """Return an SVG element of this width; a narrow one is higher by its list of names."""
    margin = 14.0 if is_narrow else 34 + LETTER * max(len(_shortened(one.name)) for one in chart.series)
    frame = _frame(chart, width - margin, height)
    names = _names_below if is_narrow else _names_beside
    parts = (*_axes(chart, frame), *_reference(chart, frame), *_series(chart, frame), *names(chart, frame))
    total = height + (LABEL * len(chart.series) + 6 if is_narrow else 0)
    kind = "chart narrow" if is_narrow else "chart wide"
    return tag("svg", *parts, class_=kind, viewBox=view_box(width, total), role="img", aria_label=chart.alt)


def _frame(chart: Chart, right: float, height: float) -> _Frame:
    points = [point for one in chart.series for point in one.points]
    values = [value for one in points for value in (one.y, one.low, one.high) if isfinite(value)]
    y_ticks = round_ends([*values, *([chart.reference[1]] if chart.reference else [])])
    xs = [one.x for one in points]
    inside = min(60.0, (right - LEFT) / 8)
    x = Scale(min(xs), max(xs), LEFT + inside, right - inside, chart.x_of)
    y = Scale(y_ticks[0], y_ticks[-1], height - BELOW, TOP)
    return _Frame(x, y, _readable(chart.x_ticks, x), y_ticks)


def _readable(ticks: Sequence[float], x: Scale, least: float = 52.0) -> list[float]:
    """Return the ticks whose labels do not overlap."""
    found: list[float] = []
    for tick in ticks:
        if not found or x(tick) - x(found[-1]) >= least:
            found.append(tick)
    return found


def _axes(chart: Chart, frame: _Frame) -> Iterator[str]:
    left, right, bottom = LEFT, _right(frame), frame.y.start
    for tick in frame.y_ticks:
        yield line(left, frame.y(tick), right, frame.y(tick), class_="grid")
        yield text(f"{tick:g}", left - 8, frame.y(tick) + 4, class_="tick end")
    for tick in frame.x_ticks:
        yield line(frame.x(tick), bottom, frame.x(tick), bottom + 5, class_="axis")
        yield text(chart.number(tick), frame.x(tick), bottom + 18, class_="tick middle")
    yield line(left, bottom, right, bottom, class_="axis")
    yield text(chart.x_label, (left + right) / 2, bottom + 37, class_="name middle")
    yield text(chart.y_label, 12, (TOP + bottom) / 2, class_="name middle", transform=_turned(12, (TOP + bottom) / 2))


def _right(frame: _Frame) -> float:
    return frame.x.end + frame.x.start - LEFT


def _turned(x: float, y: float) -> str:
    return f"rotate(-90 {x:.1f} {y:.1f})"


def _reference(chart: Chart, frame: _Frame) -> Iterator[str]:
    if chart.reference:
        name, value = chart.reference
        yield line(LEFT, frame.y(value), _right(frame), frame.y(value), class_="reference")
        under = 14 if frame.y(value) < TOP + 16 else -5
        yield text(name, LEFT + 4, frame.y(value) + under, class_="name halo")


def _series(chart: Chart, frame: _Frame) -> Iterator[str]:
    """Yield all lines first, then all intervals and marks, so that none is covered by a line."""
    placed = [[(frame.x(one.x) + shift, one) for one, shift in row] for row in _dodged(chart, frame)]
    for number, points in enumerate(placed):
        path = "L".join(f"{x:.1f} {frame.y(one.y):.1f}" for x, one in points)
        yield tag("path", class_=f"run {colour_class(number)}", d=f"M{path}")
    for number, points in enumerate(placed):
        for x, one in points:
            yield from _interval(number, x, one, frame)
            yield mark(number, x, frame.y(one.y), title(one.about), is_hollow=one.is_hollow)


def _interval(number: int, x: float, one: Point, frame: _Frame) -> Iterator[str]:
    if isfinite(one.low):
        low, high = frame.y(one.low), frame.y(one.high)
        ends = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
        yield tag("path", class_=f"interval {colour_class(number)}", d=ends)


def _dodged(chart: Chart, frame: _Frame) -> list[list[tuple[Point, float]]]:
    """Return each point with its horizontal shift: points of one x are in the order of the series."""
    groups = clusters(point.x for one in chart.series for point in one.points)
    gaps = [frame.x(b[0]) - frame.x(a[-1]) for a, b in pairwise(groups)]
    step = min(chart.dodge, 0.8 * min(gaps, default=_right(frame) - LEFT) / len(chart.series))
    middle = (len(chart.series) - 1) / 2
    return [
        [(point, step * (number - middle)) for point in sorted(one.points)] for number, one in enumerate(chart.series)
    ]


def _names_beside(chart: Chart, frame: _Frame) -> Iterator[str]:
    """Name each series beside its last point, with a thin line to the name."""
    ends = [max(one.points) for one in chart.series]
    shifts = [row[-1][1] for row in _dodged(chart, frame)]
    places = apart([frame.y(one.y) for one in ends], LABEL)
    over = max(0.0, max(places) - frame.y.start) - max(0.0, TOP - min(places))
    x = _right(frame) + 12
    for number, (one, end, place, shift) in enumerate(zip(chart.series, ends, places, shifts, strict=True)):
        y = place - over
        begin = f"{frame.x(end.x) + shift + 8:.1f} {frame.y(end.y):.1f}"
        yield tag("path", class_="leader", d=f"M{begin}L{x - 4:.1f} {y:.1f}")
        yield mark(number, x + 4, y)
        yield text(_shortened(one.name), x + 15, y + 4, class_="name")


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _names_below(chart: Chart, frame: _Frame) -> Iterator[str]:
    for number, one in enumerate(chart.series):
        y = frame.y.start + BELOW + LABEL * number + 8
        yield mark(number, LEFT - 30, y)
        yield text(_shortened(one.name), LEFT - 18, y + 4, class_="name")


def colour_class(number: int) -> str:
    return f"p{number % len(POLICIES)}"


def mark(number: int, x: float, y: float, *inner: str, is_hollow: bool = False) -> str:
    """Return a policy's mark: a shape and a colour, so that none depends on its colour alone.

    is_hollow: too few prompts to tell.
    """
    kind = "mark hollow" if is_hollow else "mark"
    shape = SHAPES[number % len(SHAPES)]
    return tag(
        "path", *inner, class_=f"{kind} {colour_class(number)}", d=shape, transform=f"translate({x:.1f} {y:.1f})"
    )
