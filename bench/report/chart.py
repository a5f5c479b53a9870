"""chart: line charts in panels, or bars, as one SVG for light and dark pages.

It is written without a plotting package, so the bytes are the same on every machine.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

COLOURS = ("#2f81f7", "#8250df", "#e0602e", "#1a9c5b", "#c99a00", "#d6409f")
WIDTH, LEFT, TOP, HEIGHT, GAP = 880, 62, 84, 190, 78
SHIFT = 4  # horizontal offset between lines, so that intervals do not overlap
NAMES, ROW, OTHERS = 160, 28, "#8b949e"  # of bars: width of their names, height of a row, colour of others' bars
STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a }
    .title { font-size: 15px; font-weight: 600 }
    .grid { stroke: #57606a; stroke-opacity: .25 } .zero { stroke: #57606a }
    .line { fill: none; stroke-width: 2.5; stroke-linejoin: round } .bar { stroke-width: 1.2; stroke-opacity: .6 }
    @media (prefers-color-scheme: dark) { text { fill: #c9d1d9 } .grid, .zero { stroke: #c9d1d9 } }
"""


class Point(NamedTuple):
    """A point; `low` and `high` are the ends of its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Panel(NamedTuple):
    """One plot of a chart. ticks: the labels of the x axis by position."""

    title: str
    lines: Mapping[str, Sequence[Point]]
    ticks: Mapping[float, str]
    x_title: str = ""


class Bars(NamedTuple):
    """One column of bars. values: by the name of a row."""

    title: str
    values: Mapping[str, float]


def bars(title: str, columns: Sequence[Bars], ours: Collection[str]) -> str:
    """Return the SVG: a row for each name, and a bar with its value in each column. ours: names in colour."""
    names = list(dict.fromkeys(name for column in columns for name in column.values))
    height = 62 + len(names) * ROW
    return "\n".join(
        (
            _opening(title, height),
            *(_text(NAMES - 10, _row(place) + 14, name, anchor="end") for place, name in enumerate(names)),
            *(line for place, column in enumerate(columns) for line in _bars(column, place, names, ours)),
            "</svg>\n",
        )
    )


def _bars(column: Bars, place: int, names: Sequence[str], ours: Collection[str]) -> list[str]:
    left, width = NAMES + place * (WIDTH - NAMES) // 2, (WIDTH - NAMES) // 2 - 70  # room for the values
    most = max(column.values.values())
    elements = [_text(left, 46, column.title)]
    for name, value in column.values.items():
        y, length = _row(names.index(name)), width * value / most
        colour = COLOURS[0] if name in ours else OTHERS
        elements.append(f'  <rect x="{left}" y="{y}" width="{length:.1f}" height="{ROW - 8}" rx="2" fill="{colour}"/>')
        elements.append(_text(left + length + 6, y + 14, f"{value:,.0f}"))
    return elements


def _row(place: int) -> int:
    """Return the y coordinate of the top of a row's bars."""
    return 56 + place * ROW


def _opening(title: str, height: int) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
            f"  <style>{STYLE}  </style>",
            _text(0, 16, title, "title"),
        )
    )


def chart(title: str, panels: Sequence[Panel]) -> str:
    """Return the SVG: two panels per row, one legend for all."""
    names = list(dict.fromkeys(name for panel in panels for name, points in panel.lines.items() if points))
    colours = dict(zip(names, COLOURS, strict=False))
    rows = (len(panels) + 1) // 2
    height = TOP + rows * (HEIGHT + GAP) - GAP + 46
    return "\n".join(
        (
            _opening(title, height),
            *_legend(colours),
            *(line for place, panel in enumerate(panels) for line in _panel(panel, place, colours)),
            "</svg>\n",
        )
    )


def _legend(colours: Mapping[str, str]) -> list[str]:
    lines, x = [], 0
    for name, colour in colours.items():
        lines += [f'  <circle cx="{x + 6}" cy="36" r="5" fill="{colour}"/>', _text(x + 16, 40, name)]
        x += 34 + 7 * len(name)
    return lines


def _panel(panel: Panel, place: int, colours: Mapping[str, str]) -> list[str]:
    left = LEFT + place % 2 * (WIDTH // 2)
    right, top = left + WIDTH // 2 - LEFT - 20, TOP + place // 2 * (HEIGHT + GAP)
    points = [point for line in panel.lines.values() for point in line]
    marks = _marks(points)
    low, high = marks[0], marks[-1]
    first, last = min(panel.ticks), max(panel.ticks)

    def x(value: float) -> float:
        return left + 14 + (right - left - 28) * (value - first) / (last - first)

    def y(value: float) -> float:
        return top + HEIGHT * (high - value) / (high - low)

    elements = [_text(left, top - 10, panel.title)]
    for mark in marks:
        kind = "grid" if mark or not low else "zero"
        elements.append(f'  <line class="{kind}" x1="{left}" y1="{y(mark):.1f}" x2="{right}" y2="{y(mark):.1f}"/>')
        elements.append(_text(left - 8, y(mark) + 4, f"{mark:,g}", anchor="end"))
    elements += [_text(x(value), top + HEIGHT + 20, text, anchor="middle") for value, text in panel.ticks.items()]
    elements.append(_text((left + right) / 2, top + HEIGHT + 40, panel.x_title, anchor="middle"))
    for shift, (name, line) in enumerate(panel.lines.items()):
        aside = SHIFT * (shift - (len(panel.lines) - 1) / 2)
        elements += _line([point._replace(x=x(point.x) + aside) for point in line], y, colours.get(name, "none"))
    return elements


def _line(points: Sequence[Point], y: Callable[[float], float], colour: str) -> list[str]:
    path = " ".join(f"{point.x:.1f},{y(point.y):.1f}" for point in points)
    return [
        f'  <polyline class="line" stroke="{colour}" points="{path}"/>',
        *(f'  <circle cx="{point.x:.1f}" cy="{y(point.y):.1f}" r="4" fill="{colour}"/>' for point in points),
        *(
            f'  <line class="bar" stroke="{colour}" x1="{point.x:.1f}" y1="{y(point.low):.1f}"'
            f' x2="{point.x:.1f}" y2="{y(point.high):.1f}"/>'
            for point in points
            if point.low is not None and point.high is not None
        ),
    ]


def _marks(points: Sequence[Point]) -> list[float]:
    """Return four to eight round values that include zero and span all points and intervals."""
    values = [0.0, *(value for point in points for value in (point.y, point.low, point.high) if value is not None)]
    low, high = min(values), max(values)
    step = 10.0 ** floor(log10(high - low))
    step *= next(share for share in (0.2, 0.5, 1, 2) if (high - low) / (share * step) <= 7)
    return [mark * step for mark in range(floor(low / step), ceil(high / step) + 1)]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'  <text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
