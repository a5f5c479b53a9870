import pytest

from bench.report.peers import BITS, FAMILIES, FIRST, Pair, choose, closest
from bench.report.peers import cells as read_back
from bench.results import ResultRow
from tests.bench.report.made import cell, cells

PEERS = [engine for engines in FAMILIES.values() for engine in engines if not engine.startswith("ringkv")]


def pair(rows: list[ResultRow], metric: str = "decode") -> Pair | None:
    found = read_back(rows, FIRST, "smollm2")
    return closest(choose(found, ("ringkv",), 8192), choose(found, PEERS, 8192), metric)


def test_the_closest_peer_counts() -> None:
    rows = cells(
        cell("ringkv", 7680, 8, decode_tps=120.0),
        cell("openvino", 7680, 8, decode_tps=40.0),
        cell("openvino-u8kv", 7680, 8, decode_tps=60.0),
    )
    found = pair(rows)
    assert found is not None
    assert (found.other.engine, found.ratio) == ("openvino-u8kv", pytest.approx(2.0))


def test_turns_that_both_took_count_before_medians() -> None:
    rows = cells(
        cell("ringkv", 7680, 8, decode_tps=120.0, ringkv_decodes=1.0),
        cell("vllm", 7680, 8, decode_tps=40.0, ringkv_decodes=3.5),
    )
    found = pair(rows)
    assert found is not None
    assert found.ratio == 3.5


def test_only_cells_of_one_run_make_a_pair() -> None:
    fast = cells(cell("ringkv", 7680, 8, decode_tps=60.0), cell("vllm", 7680, 8, decode_tps=30.0), run="a fast hour")
    slow = cells(cell("ringkv", 7680, 8, decode_tps=20.0), cell("openvino", 7680, 8, decode_tps=16.0), run="a slow one")
    found = pair([*fast, *slow])
    assert found is not None
    assert (found.other.engine, found.ratio) == ("openvino", pytest.approx(1.25))
    assert pair([*fast[:1], *slow[1:]]) is None


def test_other_lengths_protocols_and_lower_bits_are_left_out() -> None:
    rows = cells(
        cell("ringkv", 7680, 8, decode_tps=120.0),
        cell("vllm", 4096, 8, decode_tps=1.0),
        cell("openvino", 7680, 8, decode_tps=1.0, protocol="resident"),
        cell("llama.cpp", 7680, 8, decode_tps=1.0, weights="q4_0"),
    )
    assert pair(rows) is None


def test_prefill_is_compared_by_prefill() -> None:
    rows = cells(
        cell("ringkv", 7680, 1, prefill_tps=900.0, decode_tps=1.0),
        cell("vllm", 7680, 1, prefill_tps=600.0, decode_tps=9.0),
    )
    found = pair(rows, "prefill")
    assert found is not None
    assert found.ratio == pytest.approx(1.5)


def test_every_engine_that_can_be_measured_has_a_family() -> None:
    from bench.peers.engines import ENGINES

    assert {engine for members in FAMILIES.values() for engine in members} >= set(ENGINES)
    assert {weights for engine in ("ringkv", "ringkv-full") for weights in ENGINES[engine].weights.values()} <= {
        weights for every in BITS.values() for weights in every
    }
