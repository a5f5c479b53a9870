"""The device benchmark's script with tiny shapes on the CPU; this checks its arithmetic, not its speeds."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import results
from bench.device import made
from bench.device.parts import planned
from bench.device.scale import REAL, SMALL
from ringkv.graphs.graph import Eager
from ringkv.plan.footprint import TEMPORARIES, sampler_bytes

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    command = [sys.executable, "-m", "bench.device", "--small", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200, text=True)
    (folder / "shown.txt").write_text(done.stdout)
    return folder


@pytest.mark.slow  # runs the benchmark
def test_every_cache_is_measured_with_the_slots_that_the_plan_gives_it(out: Path) -> None:
    figures = results.figures(results.read(out / "measurements.jsonl"), "device")
    memory = next(one["free"] for one in figures if one["kind"] == "memory")
    token = 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, width, bytes
    weights = 4 * (2 * 199 * 128 + 128 + 2 * (128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 192 + 2 * 128))
    free = memory - weights - SMALL.reserve - SMALL.prompt * token
    for entries in (1024, 256, 128):
        found = next(one for one in figures if one["kind"] == "decode" and one["budget"] == entries)
        assert found["slots"] == free // (entries * token + sampler_bytes(199))
        read = 4 * (199 * 128 + 2 * (128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 192))  # no norms, one table
        assert found["need_bytes"] == read + found["slots"] * found["live"] * token
        assert 0 <= entries - found["live"] < SMALL.steps


@pytest.mark.slow  # runs the benchmark
def test_the_table_shows_them_all(out: Path) -> None:
    shown = (out / "shown.txt").read_text()
    for words in (
        "| full | plain, no graphs |",
        "| snapstream | plain, no graphs |",
        "| snapstream | int8, no graphs |",
        "tokens/s",
        "| experts | 8 |",
        "| plain latents | 2 x 64 |",
        "| int4 latents | 2 x 64 |",
        "| plain slots | 2 x 64 |",
        "| int4 slots | 2 x 64 |",
        "| plain slots, unequal heads | 2 x 64 |",
        "| plain slots, a quarter of pages | 2 x 64 |",
    ):
        assert words in shown
    assert "all parts done" in shown


class Recorder(Eager):
    def __init__(self) -> None:
        self.names: list[str] = []

    def make(self, name, function, example):  # type: ignore[no-untyped-def]
        self.names.append(name)
        return super().make(name, function, example)


def test_a_part_compiles_only_the_graphs_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(made, "_backend", lambda config, name: recorder)
    config = made.engine_config(SMALL, "snapstream", 128, 3, 64)
    engine = made.make_engine(SMALL, config, "inductor", ("decode-", "head-"))
    assert {name.split("-")[0] for name in recorder.names} == {"decode", "head"}
    assert made.fill(engine, SMALL.prompt, SMALL.steps) > 0
    engine.sample()
    engine.forward()


def test_the_plan_for_llama_on_80_gb_equals_a_calculation_by_hand() -> None:
    bandwidth = 3 * 10**12
    rows = planned(replace(REAL, memory=80 * 10**9), 8192, bandwidth)
    slot = 8192 * 131072  # entries, bytes of each
    staging, weights = 131072 * 131072, 2 * 8_030_261_248
    sampler = 128_256 * (14 + TEMPORARIES) + 128_256 // 8
    slots = (80 * 10**9 - staging - weights - REAL.reserve) // (slot + sampler)
    assert rows["snapstream"].slots == slots
    seconds = (2 * 7_504_924_672 + slots * slot) / bandwidth
    assert rows["snapstream"].tokens_per_second == pytest.approx(slots / seconds)
