from types import SimpleNamespace
from typing import Any

import pytest
import toy

from bench import limits as module
from bench.limits import _compression, _growth, _probes, _speed
from bench.limits_tables import growth_table, speed_table
from bench.results import figures, rows
from ringkv.bench.probe import Ceiling
from ringkv.plan.floor import Cost
from ringkv.scheduler.round import make_request


def bench(engine: toy.ToyEngine, context: int = 4096) -> Any:
    config = SimpleNamespace(context=context, vocab_size=toy.MODULUS)
    step = lambda engine, live: Cost(engine.limits.slots * live, 0)  # noqa: E731
    return SimpleNamespace(
        model="toy",
        weights="bfloat16",
        budget=64,
        config=config,
        engine=lambda slots, prompt, lanes=1: engine,
        step=step,
    )


def test_a_speed_is_compared_with_the_rates_for_its_bytes() -> None:
    ceiling = Ceiling({1: {"a": 8.0}, 100: {"a": 4.0}}, {"m": 10.0})
    found = _speed(bench(toy.ToyEngine()), "decode", 8, 4096, 50.0, Cost(160, 10), ceiling)
    assert (found.bandwidth, found.share) == (4.0, pytest.approx(160 / 4 / 50))
    row = "| toy | bfloat16 | a step | 8 | 0.00 GB | 0.0 GFLOP | 40,000.0 ms | 50,000.0 ms | 80% |"
    assert row in speed_table([{"kind": "speed", **vars(found)}])


def test_prompts_at_or_over_the_budget_cost_the_same_bytes() -> None:
    engine = toy.ToyEngine(toy.limits(slots=8, capacity=64, prompt_tokens=512, lanes=3))
    found = _growth(bench(engine, context=400), (64, 128, 512), steps=3, rounds=2)
    assert [one.prompt for one in found] == [64, 128, 400 - 3 - 1]
    assert {one.step_bytes for one in found} == {8 * 64}
    assert found[0].over_shortest == 1.0
    assert growth_table([{"kind": "growth", **vars(one)} for one in found]).count("8 of 64") == 3


def test_compression_is_a_share_of_prefill_and_a_time_for_each_thousand_kept() -> None:
    engine = toy.ToyEngine(toy.limits(capacity=64))
    done = module._prompt(engine, make_request(toy.MODULUS, 100, 4))  # type: ignore[arg-type]
    prompts = [done._replace(prefill=2.0, without_votes=0.002, compress=0.012, insert=0.006)] * 3
    found = _compression(bench(engine), prompts, 2.0)
    assert (found.kept, found.of_prefill) == (64, pytest.approx(0.005))
    assert found.per_1k_s == pytest.approx(0.125)


def test_every_probed_way_is_a_row_with_its_rate() -> None:
    found = list(_probes(Ceiling({64: {"sum": 2.5, "copy": 2.0}}, {"product": 3.5})))
    about = {"machine": "m", "run": "1", "processor": "p", "versions": "v", "commit": "c"}
    back = figures(rows("limits", {}, found, about), "limits", kind="probe")
    assert [(one["what"], one.get("amount"), one["way"], one["rate"]) for one in back] == [
        ("read", 64, "sum", 2.5),
        ("read", 64, "copy", 2.0),
        ("product", None, "product", 3.5),
    ]
