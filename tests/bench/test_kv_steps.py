"""Whole steps by format: what the cases are, and what their figures are relative to."""

import pytest

from bench import kv_steps
from bench.kv_steps import Case, StepFigure, batches, of_cases
from bench.report.kv_steps import kv_steps as report
from tests.bench.report.made import measured


def test_a_batch_of_int4_slots_fits_into_the_bytes_of_the_plain_ones() -> None:
    plain, int4 = batches({"plain": 768, "int4": 216}, 8000)
    assert (plain.slots, plain.live, int4.live, int4.skip) == (8, 2000, 2000, 0)
    assert int4.slots * 216 <= plain.slots * 768 < (int4.slots + 1) * 216


def test_a_share_is_the_rate_of_reading_relative_to_plain_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((4.0, 2.0, 6.0, 4.0))  # of rounds, the cases alternating: 5 for plain, 3 for int8
    read = {"plain": 10e9, "int8": 3e9}

    def made(_: str, case: Case) -> StepFigure:
        return StepFigure(*case[:4], 0, read[case.format], next(seconds), 1.0)

    monkeypatch.setattr(kv_steps, "measured", made)
    plain, int8 = of_cases("smollm2", [Case("steps", "plain", 8, 100), Case("steps", "int8", 8, 100)], 2)
    assert (plain.seconds, plain.share, int8.seconds) == (5, 1, 3)
    assert int8.share == pytest.approx((3e9 / 3) / (10e9 / 5))  # 1 GB/s of 2 GB/s


def test_the_table_has_tokens_and_bytes_per_second() -> None:
    case = {"part": "batches", "format": "int4", "slots": 28, "live": 2000, "slots_bytes": 379_000_000}
    row = {"model": "smollm2", **case, "step_bytes": 630e6, "seconds": 0.05, "share": 0.53}
    line = report(measured("kv_steps", row)).splitlines()[2]
    assert line.endswith("| int4 | 28 x 2,000 | 379 | 560 | 12.6 | 53% |")
