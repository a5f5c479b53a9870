import re
from xml.etree import ElementTree

import pytest

from bench.report.chart import Bars, Panel, Point, _marks, bars, chart

SVG = "{http://www.w3.org/2000/svg}"


def parsed_chart(*lines: list[Point], **names: list[Point]) -> ElementTree.Element:
    every = {f"line {place}": line for place, line in enumerate(lines)} | names
    return ElementTree.fromstring(chart("A title", [Panel("left", every, {0: "a", 1: "b"})]))


def heights(picture: ElementTree.Element) -> dict[float, float]:
    """Return the y coordinate of each mark, by its value."""
    labels = [one for one in picture.iter(f"{SVG}text") if re.fullmatch(r"-?[\d,.]+", one.text or "")]
    return {float((one.text or "").replace(",", "")): float(one.get("y", 0)) - 4 for one in labels}


def test_a_point_is_at_its_value_between_the_marks() -> None:
    picture = parsed_chart([Point(0, 30), Point(1, 55)])
    marks = heights(picture)
    low, high = min(marks), max(marks)
    for circle, value in zip(picture.findall(f"{SVG}circle")[1:], (30, 55), strict=True):
        share = (float(circle.get("cy", 0)) - marks[low]) / (marks[high] - marks[low])
        assert share == pytest.approx((value - low) / (high - low), abs=1e-3)


def test_an_interval_is_a_line_between_its_ends() -> None:
    picture = parsed_chart([Point(0, -10, -40, 5)])
    marks = heights(picture)
    (bar,) = [one for one in picture.iter(f"{SVG}line") if one.get("class") == "bar"]
    scale = (marks[max(marks)] - marks[min(marks)]) / (max(marks) - min(marks))
    assert float(bar.get("y2", 0)) - float(bar.get("y1", 0)) == pytest.approx(45 * scale, abs=0.2)


def test_lines_without_points_are_not_in_the_legend() -> None:
    picture = parsed_chart(seen=[Point(0, 1), Point(1, 2)], unseen=[])
    texts = [one.text for one in picture.iter(f"{SVG}text")]
    assert "seen" in texts
    assert "unseen" not in texts


def test_dark_pages_get_light_text() -> None:
    style = parsed_chart([Point(0, 1), Point(1, 2)]).findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme: dark" in style


@pytest.mark.parametrize(("low", "high"), [(0, 967), (0, 88.8), (-76, 0), (-9.3, 1.8), (0.2, 0.3), (-1, 12345)])
def test_marks_are_few_and_round_and_span_all_values(low: float, high: float) -> None:
    marks = _marks([Point(0, low), Point(1, high)])
    assert 4 <= len(marks) <= 9
    assert marks[0] <= low
    assert high <= marks[-1]
    assert any(abs(mark) < 1e-9 for mark in marks)
    assert {f"{mark:e}".split("e")[0].rstrip("0").rstrip(".") for mark in marks} <= {
        f"{sign}{number:g}" for sign in ("", "-") for number in (0, *(n / 10 for n in range(10, 100)))
    }


def test_a_bar_is_as_long_as_its_value() -> None:
    picture = ElementTree.fromstring(bars("A title", [Bars("speed", {"us": 40, "them": 10})], ["us"]))
    ours, others = picture.findall(f"{SVG}rect")
    assert float(ours.get("width", 0)) == pytest.approx(4 * float(others.get("width", 0)), abs=0.1)
    assert ours.get("fill") != others.get("fill")
