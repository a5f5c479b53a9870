"""A chart's marks compared with where their values belong."""

from math import inf, log2
from xml.etree import ElementTree

import pytest

from ringkv.evaluation.report.chart import Chart, Point, Series, draw

SVG = {"role": "img", "aria-label": "what it shows"}
POINTS = [Point(25, 60, 50, 70, "a <b>"), Point(50, 80, 70, 90, "c"), Point(100, 100, -inf, inf, "d", is_hollow=True)]
OTHERS = [Point(25, 40, 30, 50, "e"), Point(50, 41, 30, 50, "f")]


def drawn(is_narrow: bool = False) -> ElementTree.Element:
    series = [Series("one & only", POINTS), Series("other", OTHERS)]
    chart = Chart("what it shows", series, "x", "y", [25, 50, 100], str, log2, ("full: 80", 80), dodge=10)
    return ElementTree.fromstring(draw(chart, 800, 400, is_narrow))


def at(mark: ElementTree.Element) -> tuple[float, float]:
    x, y = mark.attrib["transform"].removeprefix("translate(").removesuffix(")").split()
    return float(x), float(y)


def marks(svg: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    """Return the places of the marks that stand for points, which have titles."""
    return [
        at(one) for one in svg.iter("path") if one.attrib["class"] in kind.split("|") and one.find("title") is not None
    ]


def test_heights_are_those_of_the_reference_line_and_widths_are_equal_for_equal_ratios() -> None:
    svg = drawn()
    (a, b), (hollow,) = marks(svg, "mark p0"), marks(svg, "mark hollow p0")
    (line,) = (one for one in svg.iter("line") if one.attrib.get("class") == "reference")
    assert b[1] == pytest.approx(float(line.attrib["y1"]), abs=0.1)
    assert hollow[0] - b[0] == pytest.approx(b[0] - a[0], abs=0.2)
    assert a[1] - b[1] == pytest.approx(b[1] - hollow[1], abs=0.2)


def test_points_of_one_size_stand_side_by_side() -> None:
    svg = drawn()
    (a, b), (c, d) = marks(svg, "mark p0"), marks(svg, "mark p1")
    assert (c[0] - a[0], d[0] - b[0]) == (pytest.approx(10, abs=0.1), pytest.approx(10, abs=0.1))


def test_intervals_are_drawn_if_there_are_any() -> None:
    kinds = [one.attrib["class"] for one in drawn().iter("path")]
    assert (kinds.count("interval p0"), kinds.count("interval p1")) == (2, 2)


@pytest.mark.parametrize("is_narrow", [False, True])
def test_every_series_is_named_beside_a_mark_inside_the_picture(is_narrow: bool) -> None:
    svg = drawn(is_narrow)
    assert SVG.items() <= svg.attrib.items()
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for name, kind in (("one & only", "mark p0"), ("other", "mark p1")):
        (label,) = (one for one in svg.iter("text") if one.text == name)
        x, y = float(label.attrib["x"]), float(label.attrib["y"])
        beside = [at(one) for one in svg.iter("path") if one.attrib["class"] == kind and one.find("title") is None]
        assert [(round(x - a), round(y - b)) for a, b in beside] in ([(11, 4)], [(12, 4)])
        assert 0 < y < height
        assert x + 6 * len(name) < width
