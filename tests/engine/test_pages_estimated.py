"""Slots in pages whose unread pages are estimated: nearer to the full cache, and exact where everything is read."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import MEANS, Pages, PlaneFormat, SlotFormat
from ringkv.base.kv import KVChoice
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.encoding import ENCODINGS
from ringkv.models.config import load_config
from ringkv.plan.engine_footprint import engine_footprint
from tests.engine import tiny
from tests.engine.rank_threads import on_ranks
from tests.engine.test_golden import GEMMA3, GEMMA3_ROPES
from tests.engine.test_pages import CAPACITY, KV, PAGE, ROCKET, assert_drafts_change_nothing, decoded, index
from tests.engine.test_poisoned import poison_all


@pytest.fixture(scope="module", params=["plain", "int8", "int4"])
def estimating(llama_dir: Path, request: pytest.FixtureRequest) -> LocalEngine:
    return built(llama_dir, request.param)


def built(folder: Path, encoding: PlaneFormat, estimated: bool = True, **others: object) -> LocalEngine:
    slots = SlotFormat(encoding, Pages(PAGE, estimated=estimated))
    return build(tiny.config(folder, kv=KV, capacity=CAPACITY, slot_format=slots, **others))


def encoding_of(engine: LocalEngine) -> PlaneFormat:
    return engine.model.groups[0].slots.encoding


def test_a_budget_of_all_pages_has_the_bits_of_the_full_cache(estimating: LocalEngine, llama_dir: Path) -> None:
    full = KVChoice("full", select=KV.select)
    whole = build(tiny.config(llama_dir, kv=full, capacity=CAPACITY, slot_format=SlotFormat(encoding_of(estimating))))
    want = decoded(whole, full)
    assert torch.equal(decoded(estimating, replace(KV, budget=None)), want)
    assert torch.equal(decoded(estimating, full, slot=2), want)


def test_estimated_pages_bring_logits_nearer_to_those_of_the_full_cache(
    estimating: LocalEngine, llama_dir: Path
) -> None:
    full = decoded(estimating, replace(KV, policy="full", budget=None))
    without = decoded(built(llama_dir, encoding_of(estimating), estimated=False), KV) - full
    found = decoded(estimating, KV) - full
    assert not found[0].any()  # the prompt's own logits
    assert 0 < found[1:].norm() < 0.8 * without[1:].norm()


def test_unread_pages_of_a_compressed_prompt_are_estimated(estimating: LocalEngine, llama_dir: Path) -> None:
    some = replace(ROCKET, read=64)
    whole, found = decoded(estimating, ROCKET), decoded(estimating, some)
    without = decoded(built(llama_dir, encoding_of(estimating), estimated=False), some)
    assert 0 < (found - whole).norm() < 0.8 * (without - whole).norm()
    assert_means(estimating, 0, 112 + 40)


def test_layers_with_a_window_have_no_pages_to_estimate(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3", **GEMMA3, rope_parameters=GEMMA3_ROPES)
    engine = built(tmp_path, "plain")
    full = decoded(engine, replace(KV, policy="full", budget=None))
    without, found = (decoded(one, KV) - full for one in (built(tmp_path, "plain", estimated=False), engine))
    assert {group.window is None for group in engine.model.groups if group.slots.pages} == {True}
    assert 0 < found.norm() < without.norm()


def test_a_slot_has_the_mean_of_its_values(estimating: LocalEngine) -> None:
    decoded(estimating, KV, slot=1)
    assert_means(estimating, 1, 240)


def assert_means(engine: LocalEngine, slot: int, live: int) -> None:
    encoding, planes, means = ENCODINGS[encoding_of(engine)], engine.batch.bodies[0].planes, index(engine).means
    assert means is not None
    values = encoding.decode(*(plane[:, slot, :, :live] for plane in planes[len(encoding.parts) :]))
    rounded = 0.02 if encoding_of(engine) == "int4" else 2e-3  # steps add values before they are rounded
    torch.testing.assert_close(means[:, slot, :, live % MEANS], values.mean(2), atol=rounded, rtol=2e-3)
    assert means[:, slot].isfinite().all()


def test_neighbours_and_earlier_requests_change_nothing(estimating: LocalEngine) -> None:
    alone = decoded(estimating, KV, slot=1)
    tiny.enter(estimating, tiny.request(tiny.prompt(250, 3), kv=replace(KV, budget=64)), slot=0)
    assert torch.equal(decoded(estimating, KV, slot=1), alone)
    poison_all(estimating)
    assert torch.equal(decoded(estimating, KV, slot=1), alone)


def test_a_slot_moves_to_another_engine(estimating: LocalEngine, llama_dir: Path) -> None:
    tiny.enter(estimating, tiny.request(tiny.prompt(200)), slot=2)
    tiny.decode(estimating, 5, slot=2)
    other = built(llama_dir, encoding_of(estimating))
    other.restore(estimating.export(2), 0)
    assert torch.equal(tiny.decode(other, 40, slot=0)[1], tiny.decode(estimating, 40, slot=2)[1])


def test_drafts_that_are_taken_back_leave_the_same_tokens(estimating: LocalEngine, llama_dir: Path) -> None:
    drafting = built(llama_dir, encoding_of(estimating), speculate=3)
    assert_drafts_change_nothing(drafting, estimating)
    places = [index(one).means[:, 0, :, (200 + 55) % MEANS] for one in (estimating, drafting)]  # type: ignore[index]
    torch.testing.assert_close(*places)


@pytest.mark.slow
def test_graphs_compute_what_eager_steps_do(estimating: LocalEngine, llama_dir: Path) -> None:
    compiled = built(llama_dir, encoding_of(estimating), graphs="compiled")
    assert_equal_but_for_ties(decoded(compiled, KV), decoded(estimating, KV))


def assert_equal_but_for_ties(found: torch.Tensor, want: torch.Tensor) -> None:
    """Two pages may promise equal attention, except for rounding. A step may then read the other one."""
    off = (found - want).abs().amax(-1)
    assert (off < 0.2).all()
    assert (off < 1e-4).sum() >= len(off) - 2


def test_ranks_estimate_what_one_rank_does(estimating: LocalEngine, llama_dir: Path) -> None:
    config = replace(estimating.config, threads=1)
    want = decoded(estimating, KV)
    for found in on_ranks(config, 2, partial(decoded, kv=KV)):
        assert_equal_but_for_ties(found, want)


def test_a_slot_has_the_planned_bytes(estimating: LocalEngine, llama_dir: Path) -> None:
    assert estimating.limits.slot_bytes == engine_footprint(load_config(llama_dir), estimating.config).slot


@pytest.mark.parametrize(("encoding", "near"), [("int8", 0.2), ("int4", 0.6)])
def test_keys_with_a_common_part_are_estimated_in_encoded_pages_as_in_plain_ones(
    tmp_path: Path, encoding: PlaneFormat, near: float
) -> None:
    """Digests of encoded pages lack the common part, which a bias gives to all keys."""
    model = tiny.save(tmp_path, "Qwen2")
    for name, bias in model.named_parameters():
        if name.endswith("k_proj.bias"):
            bias.data += 3 * torch.randn_like(bias)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    want, found = decoded(built(tmp_path, "plain"), KV), decoded(built(tmp_path, encoding), KV)
    dropped = decoded(built(tmp_path, "plain", estimated=False), KV)
    assert (found - want).norm() < near * (dropped - want).norm()


def test_the_next_turn_continues_the_mean(llama_dir: Path) -> None:
    engine = built(llama_dir, "plain", store_bytes=10**7)
    continuing = replace(KV, turns="continue")
    first = tiny.request(tiny.prompt(150), "one", continuing, max_tokens=4, ignore_eos=True)
    tokens = [*tiny.prompt(150), *tiny.serve(engine, first)["one"], *tiny.prompt(30, 5)]
    tiny.serve(engine, tiny.request(tokens, "two", continuing, max_tokens=9, ignore_eos=True))
    assert_means(engine, 0, len(tokens) + 8)
