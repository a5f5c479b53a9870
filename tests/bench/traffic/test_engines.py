from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.install import REQUIREMENTS
from bench.traffic.engines import CELLS, ENGINES, Demand, Started, llama_slots, ringkv_budget, staging_bytes
from ringkv.models.config import parse_config
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.plan.shapes import configurations

SMOLLM2 = parse_config(configurations()["smollm2"])
SHORT = Demand("m", 8192, 23_040, 1_500_000_000, 64, 400, 256, 2)
LONG = Demand("m", 8192, 23_040, 1_500_000_000, 32, 4096, 1024, 2, store=100_000_000)


def value(engine: str, need: Demand, flag: str) -> str:
    command = list(ENGINES[engine].command(Started(need, Path("w"), Path("t"), Path("bin"), 9)))
    return command[command.index(flag) + 1]


@pytest.mark.parametrize("demand", [SHORT, LONG])
def test_no_engine_gets_more_cache_than_the_others(demand: Demand) -> None:
    need = replace(demand, staging=staging_bytes(Path(), SMOLLM2, demand))
    slots, budget, prompt = (int(value("ringkv", need, flag)) for flag in ("--slots", "--kv-budget", "--max-prompt"))
    options = Options(slots=slots, kv_budget=budget, prompt_tokens=prompt, prefix_store=need.store, graphs="off")
    planned = engine_footprint(SMOLLM2, resolve(Path(), SMOLLM2, options, 10**12))
    ours = slots * planned.slot + planned.staging + planned.store
    assert ours <= need.cache_bytes
    assert demand is SHORT or ours > 0.99 * need.cache_bytes
    assert int(value("vllm", need, "--kv-cache-memory-bytes")) == need.cache_bytes
    for name in ("llama.cpp", "llama.cpp-unified"):
        assert int(value(name, need, "--ctx-size")) * need.token_bytes <= need.cache_bytes
        assert value(name, need, "--cache-ram") == "0"


def test_short_requests_are_not_evicted_and_all_of_them_run_at_once() -> None:
    assert ringkv_budget(SHORT) >= 400 + 256
    assert llama_slots(SHORT) == SHORT.requests


def test_a_slot_of_llama_cpp_holds_the_longest_request() -> None:
    cells, slots = int(value("llama.cpp", LONG, "--ctx-size")), int(value("llama.cpp", LONG, "--parallel"))
    assert slots == llama_slots(LONG) < LONG.requests
    assert cells % slots == 0
    assert (cells // slots) % CELLS == 0
    assert cells // slots >= LONG.length


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_an_environment_and_is_started_on_its_port_with_its_threads(name: str) -> None:
    engine = ENGINES[name]
    assert engine.environment == "ringkv" or (REQUIREMENTS / f"{engine.environment}.txt").is_file()
    assert value(name, SHORT, "--port") == "9"
    command = list(engine.command(Started(SHORT, Path("w"), Path("t"), Path("bin"), 9)))
    threads = engine.variables(SHORT).get("VLLM_CPU_OMP_THREADS_BIND", "")
    assert threads == "0-1" or command[command.index("--threads") + 1] == "2"
