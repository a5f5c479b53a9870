from typing import Any

import pytest

from bench.peers.analyse import cells


def record(kind: str, engine: str, requests: int, trial: str = "alone-0/8/0", **fields: Any) -> dict[str, Any]:
    return {"trial": trial, "kind": kind, "engine": engine, "prompt": 8, "requests": requests, **fields}


def test_step_and_throughput_are_of_the_median_of_all_turns() -> None:
    laps = [record("laps", "vllm", 4, laps_s=[0.1, 0.3]), record("laps", "vllm", 4, laps_s=[0.2, 0.2, 0.9])]
    (cell,) = cells(laps, "same", 16)
    assert cell.step_s == 0.2
    assert cell.decode_tps == pytest.approx(20)
    assert cell.itl_p99_s == 0.9


def test_a_lone_request_gives_prefill_speed_and_several_do_not() -> None:
    one, four = cells(
        [record("first", "vllm", 1, first_s=[0.5]), record("first", "vllm", 4, first_s=[0.5, 1, 1.5, 2])], "same", 16
    )
    assert (one.ttft_s, one.prefill_tps) == (0.5, 16)
    assert (four.ttft_s, four.prefill_tps) == (None, None)


def test_ratios_are_of_the_same_turn_so_drift_cancels() -> None:
    slow_hour = [record("laps", "ringkv", 4, laps_s=[0.2]), record("laps", "vllm", 4, laps_s=[0.6])]
    fast_hour = [
        record("laps", "ringkv", 4, "alone-1/8/0", laps_s=[0.1]),
        record("laps", "vllm", 4, "alone-1/8/0", laps_s=[0.3]),
        record("laps", "ringkv", 4, "alone-2/8/0", laps_s=[0.1]),  # the other was not in this trial
    ]
    ringkv, vllm = cells(slow_hour + fast_hour, "same", 16)
    assert vllm.ringkv_decodes == pytest.approx(3)
    assert ringkv.ringkv_decodes == 1


def test_at_equal_bytes_ratios_are_of_tokens_a_second() -> None:
    found = cells(
        [record("laps", "ringkv", 30, laps_s=[0.3]), record("laps", "vllm", 5, laps_s=[0.1])], "equal-bytes", 16
    )
    vllm = next(cell for cell in found if cell.engine == "vllm")
    assert vllm.ringkv_decodes == pytest.approx((30 / 0.3) / (5 / 0.1))


def test_a_cell_without_figures_has_the_failure() -> None:
    (cell,) = cells([record("failed", "vllm", 4, why="ended with SIGSEGV")], "same", 16)
    assert (cell.why, cell.step_s) == ("ended with SIGSEGV", None)


def test_the_same_leading_tokens_are_counted() -> None:
    outputs = [
        record("output", "ringkv-full", 1, tokens=[1, 2, 3, 4]),
        record("output", "vllm", 1, tokens=[1, 2, 9, 4]),
        record("output", "vllm", 1, "alone-1/8/0", tokens=[9]),  # nothing to compare with
    ]
    agrees = {cell.engine: cell.agrees for cell in cells(outputs, "same", 16)}
    assert agrees == {"ringkv-full": 4, "vllm": 2}


def test_start_is_the_fastest_one() -> None:
    starts = [record("start", "vllm", 8, start_s=seconds, facts={}) for seconds in (60.0, 20.0, 21.0)]
    assert cells(starts, "resident", 16)[0].start_s == 20.0
