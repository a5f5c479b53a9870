"""What a prompt costs under each cell, on a tiny model: counts against layouts, and times against each other."""

import json
from pathlib import Path

import pytest

from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
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
    sample = Sample("one", "", answer_tokens=answer_tokens)
    return UnansweredPrompt(TASKS["vt"], "inside", sample, TokenizedPrompt(tuple(tiny.prompt(PROMPT))), CELLS)


@pytest.fixture(scope="module", params=[None, "on_disk"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cost]:
    folder, tier = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("tier") if request.param else None
    tiny.save(folder, "Llama")
    kv = KVChoice("arkvale", budget=PROMPT // 2, sinks=4, recent=16, select=SELECT)
    engine = build(tiny.config(folder, kv=kv, capacity=320, kv_page=PAGE, slots=SLOTS, kv_tier=tier))
    return {one.cell: one for one in costs.measure(engine, item(answer_tokens=30))}


def test_a_cell_that_the_prompt_is_too_short_for_has_no_cost(found: dict[str, Cost]) -> None:
    assert [label.split(" recent")[0] for label in found] == ["full", "snapstream 2x", "arkvale 2x"]


def test_entries_are_those_of_the_layout(found: dict[str, Cost]) -> None:
    full, half, paged = found.values()
    assert (full.held, full.read) == (PROMPT, PROMPT)
    assert (half.held, half.read) == (PROMPT // 2, PROMPT // 2)
    assert (paged.held, paged.read) == (PROMPT, PROMPT // 2)
    assert {(one.prompt, one.requests, one.recalled) for one in found.values()} == {(PROMPT, SLOTS, 0.0)}


def test_each_prefill_includes_that_of_the_prompt(found: dict[str, Cost]) -> None:
    assert all(one.prefill > 0 and one.step > 0 for one in found.values())
    assert max(one.prefill for one in found.values()) < 2 * min(one.prefill for one in found.values())


def test_a_journal_gives_the_last_cost_of_each_cell(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert costs.read(path) == {}
    older, newer, other = (Cost(cell, 100, seconds, 0.1, 8, 50, 25) for cell, seconds in (("a", 1), ("a", 2), ("b", 3)))
    path.write_text("".join(f"{line}\n" for line in ('{"about": {}}', written(older, other), written(newer))))
    assert costs.read(path) == {"a": newer, "b": other}


def written(*some: Cost) -> str:
    return json.dumps(costs.line(iter(some)))
