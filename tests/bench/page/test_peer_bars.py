import pytest

from bench.page.bar import Bar
from bench.page.kept import Kept
from bench.page.peer_bars import memory_bar, peer_bars
from bench.page.seen import Limits
from bench.peers.cells import Cell
from tests.bench.page.made import cell, made, probes

FAST = probes(1e9, 1e18)  # slow memory, so bytes decide


def bar(kept: Kept, claim: str) -> Bar:
    (found,) = [one for one in peer_bars(kept, Limits(kept)) if claim in one.claim]
    return found


def tps(engine: str, rate: float, requests: int = 8, prompt: int = 7680, **more: object) -> Cell:
    kept = 1920 if engine in ("ringkv", "openvino-evict") else prompt
    return cell(engine, prompt, requests, kept=kept, decode_tps=rate, step_s=requests / rate, **more)


def test_the_fastest_setting_of_a_peer_counts() -> None:
    kept = made([tps("ringkv", 1.2), tps("openvino", 0.4), tps("openvino-u8kv", 0.6)])
    assert bar(kept, "SmolLM2-135M, prompts of 8k: decode over OpenVINO without").measured == {
        "4": None,
        "8": pytest.approx(2.0),
        "16": None,
    }


def test_a_ratio_of_shared_turns_is_preferred() -> None:
    kept = made([tps("ringkv", 1.2, ringkv_decodes=1.0), tps("vllm", 0.4, ringkv_decodes=3.5)])
    assert bar(kept, "decode over vLLM").measured["8"] == 3.5


def test_lower_bits_are_not_compared_with_sixteen() -> None:
    kept = made([tps("ringkv", 1.2), tps("llama.cpp", 1.0, weights="q4_0")])
    assert bar(kept, "8k: decode over llama.cpp").verdict == "not measured"


def test_the_gain_over_our_full_cache_is_held_against_the_floors() -> None:
    weights, entry = 268_959_744, 23_040
    predicted = (weights + 8 * 7680 * entry) / (weights + 8 * 1920 * entry)
    kept = made([tps("ringkv", 0.2), tps("ringkv-full", 0.1)], limits=[FAST])
    assert bar(kept, "8k: decode over our full cache").measured["8"] == pytest.approx(2.0 / predicted)


def test_the_bytes_of_two_engines_are_what_each_reads_of_weights_and_cache() -> None:
    weights, entry = 268_959_744, 23_040
    wanted = (weights + 4 * 7680 * entry) / (weights + 4 * 1920 * entry)
    found = bar(made([tps("ringkv", 0.2, 4), tps("vllm", 0.1, 4)]), "bytes that a step of vLLM must read")
    assert found.measured == {"4": pytest.approx(wanted), "8": None, "16": None}


def test_equal_bytes_compare_each_engines_own_batch() -> None:
    ours = tps("ringkv", 0.8, requests=40, protocol="equal-bytes")
    other = tps("llama.cpp", 0.1, requests=8, protocol="equal-bytes")
    assert bar(made([ours, other]), "tokens/s over llama.cpp").measured == {"": pytest.approx(8.0)}


def test_prefill_is_compared_at_each_length() -> None:
    cells = [cell("ringkv", 4096, 1, prefill_tps=950.0), cell("openvino", 4096, 1, prefill_tps=1000.0)]
    found = bar(made(cells), "SmolLM2-135M: prefill over OpenVINO, dense")
    assert found.measured == {"4k": pytest.approx(0.95), "8k": None}
    assert found.verdict == "met where measured"


def test_memory_is_met_when_every_peer_that_keeps_all_holds_more() -> None:
    def held(engine: str, size: int) -> Cell:
        return cell(engine, 7680, 8, protocol="resident", rss_bytes=size)

    more = memory_bar(made([held("ringkv", 10), held("llama.cpp", 11), held("openvino-evict", 5)]))
    less = memory_bar(made([held("ringkv", 10), held("llama.cpp", 9)]))
    assert (more.measured["llama.cpp"], more.verdict) == (1, "met where measured")
    assert less.verdict == "**missed**"
