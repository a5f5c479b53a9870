"""Engines with pages, plain and encoded: neighbours, other engines, drafts, graphs, ranks and layers with a window."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import PageFormat, PlaneFormat, SlotFormat
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.engine_footprint import engine_footprint
from tests.engine import tiny
from tests.engine.rank_threads import on_ranks
from tests.engine.test_golden import GEMMA3, GEMMA3_ROPES
from tests.engine.test_pages import CAPACITY, KV, PAGE, decoded
from tests.engine.test_poisoned import poison_all

# Sums in another order may round a code the other way, and all later steps read it: largest difference of logits.
NEAR = {"plain": 1e-4, "int8": 5e-4, "int4": 5e-3}


@pytest.fixture(scope="module", params=["plain", "int8", "int4"])
def paged(llama_dir: Path, request: pytest.FixtureRequest) -> LocalEngine:
    return built(llama_dir, request.param)


def built(folder: Path, encoding: PlaneFormat, **others: object) -> LocalEngine:
    slots = SlotFormat(encoding, PageFormat(PAGE))
    return build(tiny.config(folder, kv=KV, capacity=CAPACITY, slot_format=slots, **others))


def test_neighbours_and_earlier_requests_change_nothing(paged: LocalEngine) -> None:
    alone = decoded(paged, KV, slot=1)
    paged.release(1)
    tiny.enter(paged, tiny.request(tiny.prompt(250, 3), kv=replace(KV, budget=64)), slot=0)
    tiny.enter(paged, tiny.request(tiny.prompt(33, 4), kv=tiny.choice("snapstream")), slot=2)
    assert torch.equal(decoded(paged, KV, slot=1), alone)
    poison_all(paged)
    assert torch.equal(decoded(paged, KV, slot=1), alone)


def test_a_slot_moves_to_another_engine(paged: LocalEngine) -> None:
    tiny.enter(paged, tiny.request(tiny.prompt(200)), slot=2)
    tiny.decode(paged, 5, slot=2)
    other = build(paged.config)
    other.restore(paged.export(2), 0)
    assert torch.equal(tiny.decode(other, 40, slot=0)[1], tiny.decode(paged, 40, slot=2)[1])


def test_drafts_that_are_taken_back_leave_the_same_tokens(paged: LocalEngine) -> None:
    """Of three drafts of a step, one is right."""
    drafting, prompt = build(replace(paged.config, speculate=3)), tiny.request(tiny.prompt(200))
    tiny.enter(paged, prompt)
    want, _ = tiny.decode(paged, 60)
    tiny.enter(drafting, prompt)
    tokens: list[int] = []
    while len(tokens) < 60:
        tokens += [token for token, _ in drafting.sample().read()[0] if token is not None]
        drafting.forward({0: (*want[len(tokens) : len(tokens) + 1], 5, 5)})
    assert tokens[:60] == want


@pytest.mark.slow
def test_graphs_compute_what_eager_steps_do(paged: LocalEngine) -> None:
    compiled = build(replace(paged.config, graphs="compiled"))
    assert_equal_but_for_ties(decoded(compiled, KV), decoded(paged, KV), NEAR[paged.config.slot_format.encoding])


def test_ranks_read_what_one_rank_does(paged: LocalEngine) -> None:
    want = decoded(paged, KV)
    for logits in on_ranks(replace(paged.config, threads=1), 2, partial(decoded, kv=KV)):
        assert_equal_but_for_ties(logits, want, NEAR[paged.config.slot_format.encoding])


def assert_equal_but_for_ties(logits: torch.Tensor, want: torch.Tensor, near: float) -> None:
    """Two pages may promise equal attention, except for rounding. A step may then read the other one."""
    off = (logits - want).abs().amax(-1)
    assert (off < 0.2).all()
    assert (off < near).sum() >= len(off) - 2


def test_a_slot_has_the_planned_bytes(paged: LocalEngine, llama_dir: Path) -> None:
    assert paged.limits.slot_bytes == engine_footprint(load_config(llama_dir), paged.config).slot


def test_layers_with_a_window_have_no_pages(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3", **GEMMA3, rope_parameters=GEMMA3_ROPES)
    engine = built(tmp_path, "plain")
    assert {group.window is None for group in engine.model.groups if group.slots.pages} == {True}
    full = decoded(engine, replace(KV, policy="full", budget=None))
    assert torch.equal(decoded(engine, replace(KV, budget=None)), full)
    assert (decoded(engine, KV) - full).abs().max() > 1e-3
