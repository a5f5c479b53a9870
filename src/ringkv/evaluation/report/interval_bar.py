"""interval_bar: one share with its interval as a small SVG, beside the full cache's 100%."""

from math import isfinite

from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.report.svg import line, tag, view_box

WIDTH, HEIGHT, END = 224.0, 16.0, 110.0  # pixels, and the percent at the right end


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
