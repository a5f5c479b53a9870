"""The costs of sampling that the benchmark computes, and how the report shows them."""

import pytest

from bench.report import sampling as report
from bench.sampling import KINDS, Times, costs
from tests.bench.report.made import measured

SAMPLES = {"greedy": [0.001, 0.003, 0.002], "top-p": [0.004, 0.006, 0.005]}
FORWARDS = {"greedy": [0.1, 0.2], "top-p": [0.098, 0.098]}
ROWS = [
    {"model": "smollm2", "kind": kind, "rows": 8, "vocab": 49152, "sample_s": sample, "forward_s": 0.018, "more": more}
    for kind, sample, more in (("greedy", 0.002, 0.0), ("top-p", 0.003, 0.05), ("grammar", 0.012, 0.5))
]


def test_a_kind_costs_its_median_sample_less_greedys_of_greedys_step() -> None:
    greedy, top_p = costs(Times(8, 100, SAMPLES, FORWARDS))
    assert (greedy.sample_s, greedy.more) == (0.002, 0)
    assert (top_p.kind, top_p.sample_s, top_p.forward_s) == ("top-p", 0.005, 0.099)
    assert top_p.more == pytest.approx(0.003 / 0.101)


def test_the_table_shows_shares_of_a_greedy_step() -> None:
    line = report.sampling(measured("sampling", *ROWS)).splitlines()[2]
    assert line.endswith("| 8 | 20.0 ms |  | +5.0% |  |  | +50.0% |  |")


def test_the_kinds_of_the_report_are_measured() -> None:
    assert {"greedy", *report.SHOWN} == set(KINDS)
