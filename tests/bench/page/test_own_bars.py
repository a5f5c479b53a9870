from typing import Any

import pytest

from bench.page.bar import Bar
from bench.page.kept import Kept
from bench.page.own_bars import own_bars
from bench.page.seen import Limits
from tests.bench.page.made import made, probes


def bar(kept: Kept, claim: str) -> Bar:
    (found,) = [one for one in own_bars(kept, Limits(kept)) if one.claim.startswith(claim)]
    return found


def speed(what: str, slots: int, seconds: float, **changes: Any) -> dict[str, Any]:
    fields = {"model": "smollm2", "weights": "bfloat16", "what": what, "slots": slots, "prompt": 4096}
    return {"kind": "speed", "need_bytes": 4e9, "need_operations": 1e9, "seconds": seconds, **fields, **changes}


def test_decode_and_prefill_are_held_against_their_floors() -> None:
    kept = made(limits=[probes(1e9, 1e12), speed("decode", 1, 5.0), speed("prefill", 1, 8.0)])
    assert bar(kept, "decode, of its floor").measured == {"SmolLM2-135M, 1 slot": pytest.approx(0.8)}
    assert bar(kept, "prefill, of its floor").verdict == "**missed**"


def test_nothing_is_above_its_floor_even_where_the_probes_were_slow() -> None:
    kept = made(limits=[probes(1e9, 1e12), speed("decode", 1, 2.0)])
    assert bar(kept, "decode, of its floor").measured == {"SmolLM2-135M, 1 slot": pytest.approx(1.0)}


def test_low_bit_weights_are_not_the_bar() -> None:
    kept = made(limits=[probes(1e9, 1e12), speed("decode", 1, 5.0, weights="int4")])
    assert bar(kept, "decode, of its floor").verdict == "not measured"


def test_a_step_must_cost_the_same_after_any_prompt() -> None:
    def growth(prompt: int, step_bytes: float, step: float) -> dict[str, Any]:
        return {"kind": "growth", "model": "smollm2", "prompt": prompt, "step_bytes": step_bytes, "step_s": step}

    equal = made(limits=[growth(2048, 9.0, 1.0), growth(8000, 9.0, 1.09)])
    grown = made(limits=[growth(2048, 9.0, 1.0), growth(8000, 10.0, 1.11)])
    verdicts = [
        [bar(kept, claim).verdict for claim in ("weights and live entries", "a step's time")] for kept in (equal, grown)
    ]
    assert verdicts == [["met where measured"] * 2, ["**missed**"] * 2]


def test_the_remainder_is_the_peak_less_what_is_known() -> None:
    mib = 1 << 20
    flat = {"weights": 100 * mib, "slots": 20 * mib, "staging": 5 * mib, "early": 500 * mib, "late": 510 * mib}
    kept = made(flat=[flat | {"peak": 525 * mib}])
    assert bar(kept, "resident memory beyond").measured == {"": 400 * mib}
    assert bar(kept, "growth from the 100th").measured == {"": 10 * mib}


def test_a_device_is_held_against_the_fastest_read_that_it_did() -> None:
    figures = [
        {"kind": "memory", "free": 80 * 10**9},
        {"kind": "bandwidth", "way": "copy", "rate": 3e12},
        {"kind": "kernel", "rate": 2e12},
        {"kind": "decode", "cache": "full", "budget": 131072, "slots": 2, "step_s": 0.01, "need_bytes": 24e9},
        {"kind": "decode", "cache": "snapstream", "budget": 8192, "slots": 20, "step_s": 0.02, "need_bytes": 54e9},
    ]
    kept = made(device=figures)
    assert bar(kept, "GPU, Llama-3.1-8B").measured == {"full": pytest.approx(0.8), "8,192": pytest.approx(0.9)}
    (share,) = bar(kept, "GPU: gain").measured.values()
    assert share is not None
    assert 0 < share < 5


def test_the_first_token_is_the_commands_not_that_of_importing_torch() -> None:
    figures = [{"command": "import torch", "first_s": 1.0}, {"command": "ringkv generate", "first_s": 4.5}]
    found = bar(made(startup=figures), "`ringkv generate")
    assert (found.measured, found.verdict) == ({"": 4.5}, "**missed**")


def test_a_second_turn_is_held_against_one_where_nothing_is_known() -> None:
    def turn(way: str, sooner: float | None) -> dict[str, Any]:
        return {"model": "smollm2", "cache": "snapstream 4x", "way": way, "sooner": sooner}

    found = bar(
        made(turns=[turn("nothing known", None), turn("reread", 9.0), turn("continue", 30.0)]), "the first token of"
    )
    assert found.measured == {"SmolLM2-135M, snapstream 4x, reread": 9.0, "SmolLM2-135M, snapstream 4x, continue": 30.0}
    assert found.verdict == "**missed**"
