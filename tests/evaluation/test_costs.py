"""What a prompt costs under each cell, on a tiny model: counts against layouts, and the engine afterwards."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ringkv.base.cache_spec import PageFormat, SlotFormat
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.evaluation import costs
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.costs import Cost
from ringkv.evaluation.pending import UnansweredPrompt
from ringkv.evaluation.prompt import TokenizedPrompt
from ringkv.evaluation.sample import Sample
from ringkv.evaluation.tasks.catalogue import TASKS
from tests.engine import tiny

PROMPT, PAGE, SLOTS = 240, 16, 2
SELECT = SnapKV(window=8)
CELLS = tuple(
    Cell(KVChoice(policy, sinks=4, recent=16, select=SELECT), budget)
    for policy, budget in (("full", None), ("snapstream", "2x"), ("arkvale", "2x"), ("snapstream", "12"))
)


def item(answer_tokens: int) -> UnansweredPrompt:
    sample = Sample("", name="one", answer_tokens=answer_tokens)
    return UnansweredPrompt(TASKS["vt"], "inside", sample, TokenizedPrompt(tuple(tiny.prompt(PROMPT))), CELLS)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = tmp_path_factory.mktemp("model")
    tiny.save(folder, "Llama")
    kv = KVChoice("arkvale", budget=PROMPT // 2, sinks=4, recent=16, select=SELECT)
    return build(
        tiny.config(folder, kv=kv, capacity=320, slot_format=SlotFormat(reading=PageFormat(PAGE)), slots=SLOTS)
    )


@pytest.fixture(scope="module")
def found(engine: LocalEngine) -> dict[str, Cost]:
    return {one.cell: one for one in costs.measure(engine, item(answer_tokens=30))}


def test_entries_are_those_of_the_layout(found: dict[str, Cost]) -> None:
    full, half, paged, impossible = found.values()
    assert (full.held, full.read) == (PROMPT, PROMPT)
    assert (half.held, half.read) == (PROMPT // 2, PROMPT // 2)
    assert (paged.held, paged.read) == (PROMPT, PROMPT // 2 // PAGE * PAGE)
    assert {(one.prompt, one.requests) for one in found.values()} == {(PROMPT, SLOTS)}
    assert impossible == Cost(impossible.cell, PROMPT, SLOTS)
    assert all(one.prefill > 0 and one.step > 0 for one in (full, half, paged))


def test_the_engine_is_as_it_was_before(engine: LocalEngine) -> None:
    request = tiny.request(tiny.prompt(100, 3), max_tokens=12, ignore_eos=True)
    before = tiny.serve(engine, request)
    assert len(list(costs.measure(engine, item(answer_tokens=2)))) == len(CELLS)
    assert tiny.serve(engine, request) == before


def test_a_cell_that_fails_has_no_cost_and_the_others_do(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    insert = engine.insert

    def failing(lane: int, slot: int, request: Request) -> None:
        if slot == 1 and request.kv is not None and request.kv.policy == "snapstream":
            raise RuntimeError("out of memory")
        insert(lane, slot, request)

    monkeypatch.setattr(engine, "insert", failing)
    assert [one.step > 0 for one in costs.measure(engine, item(answer_tokens=30))] == [True, False, True, False]


def test_a_journal_gives_the_last_cost_of_each_cell_and_prompt(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert costs.read(path) == []
    older, newer, longer = (Cost("a", prompt, 8, prefill, 0.1) for prompt, prefill in ((100, 1), (100, 2), (900, 3)))
    lines = ({"about": {}}, *({"cost": asdict(one)} for one in (older, longer, newer)))
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert costs.read(path) == [newer, longer]
