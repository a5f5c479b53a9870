"""A slot is filled layer by layer, and other slots are fed meanwhile: whatever its encoding, it then holds the same."""

from pathlib import Path

import pytest

from ringkv.base.cache_spec import PageFormat, SlotFormat
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny

LONG, SHORT = tiny.prompt(180, 1), tiny.prompt(90, 2)
LAYERS = 3
SLOTS = {
    "plain": SlotFormat(),
    "int8": SlotFormat("int8"),
    "zipcache": SlotFormat("zipcache"),
    "pages": SlotFormat(reading=PageFormat(16)),
    "int8 pages": SlotFormat("int8", PageFormat(16)),
}


@pytest.fixture(scope="module")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


def engine_of(folder: Path, name: str) -> LocalEngine:
    policy, capacity = ("arkvale", 256) if "pages" in name else ("snapstream", 64)
    choice = KVChoice(policy, budget=64, sinks=4, recent=16, select=SnapKV(window=8))
    return build(tiny.config(folder, kv=choice, slot_format=SLOTS[name], capacity=capacity))


def enter_at_once(engine: LocalEngine, tokens: list[int]) -> None:
    engine.release(0)
    tiny.enter(engine, tiny.request(tokens))


@pytest.mark.parametrize("name", SLOTS)
def test_a_slot_that_is_filled_between_steps_of_others_holds_the_same(llama_dir: Path, name: str) -> None:
    whole, parted = (engine_of(llama_dir, name) for _ in range(2))
    enter_at_once(whole, LONG)
    asked = tiny.request(LONG)
    tiny.enter(parted, tiny.request(SHORT), slot=1)
    tiny.stage(parted, asked)
    parts = 0
    for _ in parted.select(0, parted.default_kv, 0):
        tiny.decode(parted, 1, slot=1)
        parts += 1
    assert parts >= 2 * LAYERS  # selecting and filling
    parted.insert(0, 0, asked)
    assert parted.export(0).entries == whole.export(0).entries
    (mine, logits), (wanted, want) = tiny.decode(parted, 4), tiny.decode(whole, 4)
    assert mine == wanted
    assert logits.allclose(want, atol=1e-5)


@pytest.mark.parametrize("name", SLOTS)
def test_a_slot_whose_filling_ended_early_takes_another_prompt(llama_dir: Path, name: str) -> None:
    fresh, used = (engine_of(llama_dir, name) for _ in range(2))
    tiny.stage(used, tiny.request(LONG))
    early = used.select(0, used.default_kv, 0)
    for _ in range(2 * LAYERS - 1):
        next(early)
    del early
    for engine in (fresh, used):
        enter_at_once(engine, SHORT)
    assert used.export(0).entries == fresh.export(0).entries
    assert tiny.decode(used, 4)[0] == tiny.decode(fresh, 4)[0]
