from collections.abc import Sequence
from typing import Any

import pytest

from bench.report.speed import MACHINES
from bench.report.targets import Target, missed_targets, targets_table
from bench.results import ResultRow
from tests.bench.report.made import cell, cells, measured

WEIGHTS, ENTRY = 268_959_744 + 70_272, 23_040  # bytes of SmolLM2's weights, norms included, and of an entry


def table_verdict(rows: Sequence[ResultRow], claim: str, machine: int = 0) -> str:
    (line,) = [line for line in targets_table(rows).splitlines() if line.startswith(f"| {claim} |")]
    return [word.strip() for word in line.split("|")][3 + machine]


def target(bound: float, at_most: bool = False) -> Target:
    return Target("faster", bound, lambda rows, machine: [], lambda value: f"{value:.2f}x", at_most)


@pytest.mark.parametrize(
    ("found", "at_most", "verdict"),
    [
        ([2.0, 3.0], False, "2.00x to 3.00x, met"),
        ([1.99, 3.0], False, "1.99x to 3.00x, **missed in 1/2**"),
        ([2.0, 2.1], True, "2.00x to 2.10x, **missed in 1/2**"),
        ([2.5, None], False, "2.50x, met (1/2)"),
        ([1.5, None, 1.0], False, "1.00x to 1.50x, **missed in 2/2** (2/3)"),
        ([None, None], False, ""),
        ([], False, ""),
    ],
)
def test_a_target_is_met_if_every_case_reaches_it(found: list[float | None], at_most: bool, verdict: str) -> None:
    assert target(2.0, at_most).verdict(found) == verdict


def test_without_results_nothing_is_measured() -> None:
    lines = targets_table([]).splitlines()[2:]
    assert len(lines) > 30
    assert all(line.endswith("|  |  |  |") for line in lines)


def test_the_page_shows_targets_that_a_machine_missed_or_none_measured_and_counts_the_others() -> None:
    other = list(MACHINES)[1]
    rows = measured("turns", {"cache": "full", "way": "reread", "sooner": 30.0})
    rows += measured("startup", {"command": "ringkv generate", "first_s": 1.0})
    rows += measured("startup", {"command": "ringkv generate", "first_s": 4.5}, machine=other)
    shown, every = missed_targets(rows).splitlines(), targets_table(rows).splitlines()
    hidden = [line for line in every if line not in shown]
    assert [line.split(" | ")[0] for line in hidden] == [
        "| first token of a second turn, faster than with an empty prefix store"
    ]
    assert shown[:-2] == [line for line in every if line not in hidden]
    assert shown[-1].startswith("Met wherever measured: 1 others")


def many(engine: str, rate: float, requests: int, **more: Any) -> dict[str, Any]:
    kept = 1920 if engine in ("ringkv", "openvino-evict") else 7680
    return cell(engine, 7680, requests, kept, decode_tps=rate, **more)


def test_engines_are_compared_with_as_many_requests() -> None:
    rows = cells(many("ringkv", 12.0, 4), many("llama.cpp", 2.0, 4), many("ringkv", 20.0, 8), many("llama.cpp", 5.0, 8))
    assert table_verdict(rows, "SmolLM2-135M, 4 to 16 x 8k: decode over llama.cpp") == (
        "4.00x to 6.00x, **missed in 1/2** (2/3)"
    )


def test_a_machine_has_its_own_column() -> None:
    rows = measured("startup", {"command": "ringkv generate", "first_s": 4.5}, machine=list(MACHINES)[1])
    rows += measured("startup", {"command": "import torch", "first_s": 9.0})
    found = [table_verdict(rows, "`ringkv generate`, warm: first token", place) for place in range(3)]
    assert found == ["", "4.5 s, **missed in 1/1**", ""]


def test_equal_bytes_compare_each_engines_own_batch() -> None:
    rows = cells(many("ringkv", 80.0, 29, protocol="equal-bytes"), many("vllm", 10.0, 7, protocol="equal-bytes"))
    assert table_verdict(rows, "SmolLM2-135M, 8k, equal cache bytes: decode over vLLM") == "8.00x, met"


def test_the_gain_over_our_full_cache_is_a_share_of_the_ratio_of_bytes() -> None:
    byte_ratio = (WEIGHTS + 8 * 7680 * ENTRY) / (WEIGHTS + 8 * 1920 * ENTRY)
    rows = cells(many("ringkv", 0.9 * byte_ratio, 8), many("ringkv-full", 1.0, 8))
    assert table_verdict(rows, "SmolLM2-135M, 4 to 16 x 8k: decode over our full cache, of the ratio of bytes") == (
        "90%, met (1/3)"
    )


def test_prefill_is_compared_at_both_lengths() -> None:
    rows = cells(
        *(cell("ringkv", prompt, 1, prefill_tps=95.0) for prompt in (4096, 7680)),
        *(cell("openvino", prompt, 1, prefill_tps=rate) for prompt, rate in ((4096, 100.0), (7680, 101.0))),
    )
    assert table_verdict(rows, "SmolLM2-135M, 4k, 8k: prefill over OpenVINO") == "0.94x to 0.95x, **missed in 1/2**"


def test_memory_is_that_of_each_peer_that_keeps_all_less_ours() -> None:
    def resident(engine: str, size: int) -> dict[str, Any]:
        return many(engine, 1.0, 8, protocol="resident", rss_bytes=size << 20)

    rows = cells(
        resident("ringkv", 10),
        resident("llama.cpp", 11),
        resident("llama.cpp-noflash", 20),
        resident("openvino-evict", 5),
        resident("vllm", 30),
    )
    claim = "SmolLM2-135M, 8 x 8k: peak memory of peers that keep all, less ours"
    assert table_verdict(rows, claim) == "1 MiB to 20 MiB, met (2/4)"


def test_low_bit_weights_do_not_count_as_sixteen() -> None:
    speed = {"kind": "speed", "what": "decode", "share": 0.9, "slots": 1}
    assert table_verdict(measured("limits", {**speed, "weights": "int4"}), "decode step, of its floor") == ""
    assert (
        table_verdict(measured("limits", {**speed, "weights": "bfloat16"}), "decode step, of its floor") == "90%, met"
    )


def test_a_second_turn_is_compared_with_one_from_an_empty_store() -> None:
    rows = measured(
        "turns",
        *({"cache": "full", "way": way, "sooner": sooner} for way, sooner in (("reread", 9.0), ("continue", 30.0))),
    )
    claim = "first token of a second turn, faster than with an empty prefix store"
    assert table_verdict(rows, claim) == "9.00x to 30.00x, **missed in 1/2**"


def test_the_time_over_an_earlier_commits_is_of_the_newest_run_of_each_model_and_slot_count() -> None:
    def run(number: str, slots: int, ratio: float, before: str = "099e118") -> list[ResultRow]:
        figure = {"model": "smollm2", "slots": slots, "before": before, "prefill_ratio": 0.5, "step_ratio": ratio}
        return measured("beside", figure, run=number)

    rows = [*run("1", 1, 1.01), *run("1", 8, 1.3), *run("2", 8, 0.9), *run("3", 8, 2.0, before="another")]
    assert table_verdict(rows, "this commit over 099e118: decode step") == "0.900x to 1.010x, met"
    assert table_verdict(rows, "this commit over 099e118: prefill of 2k") == "0.500x, met"
