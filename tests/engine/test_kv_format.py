"""Slots in 8 bits, held against slots in the engine's dtype."""

from pathlib import Path
from random import Random

import pytest
import torch

from ringkv.base.cache_spec import CacheSpec, LayerGroup
from ringkv.base.errors import InvalidRequest
from ringkv.cache.body import Body
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.decode_attend_int8 import decode
from tests.engine import tiny

KV = tiny.choice("snapstream", budget=40, recent=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> LocalEngine:
    return build(tiny.config(folder, dtype="bfloat16"))


@pytest.fixture(scope="module")
def small(folder: Path) -> LocalEngine:
    return build(tiny.config(folder, dtype="bfloat16", kv_format="int8", speculate=3))


def prompt(n: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(3, 199), k=n)


def test_a_slot_takes_a_byte_an_element_and_four_a_vector_beside_its_centers(
    plain: LocalEngine, small: LocalEngine
) -> None:
    layers, heads, width = 3, 2, 32
    assert plain.limits.slot_bytes == 64 * layers * 2 * heads * width * 2
    assert small.limits.slot_bytes == 64 * layers * 2 * heads * (width + 4) + layers * heads * width * 4
    assert small.limits.entry_bytes == layers * 2 * heads * (width + 4)


def test_inserted_entries_are_the_kept_ones_within_half_a_scale(plain: LocalEngine, small: LocalEngine) -> None:
    asked = tiny.request(prompt(70), kv=KV)
    for engine in (plain, small):
        tiny.enter(engine, asked)
    exact = plain.batch.bodies[0].planes
    keys, key_scales, values, value_scales = small.batch.bodies[0].planes
    (centers,) = small.batch.bodies[0].centers
    live = 40
    torch.testing.assert_close(centers[:, 0], exact[0][:, 0, :, :live].float().mean(2), rtol=1e-5, atol=1e-6)
    for one, whole, scales, center in (
        (exact[0], keys, key_scales, centers[:, 0, :, None]),
        (exact[1], values, value_scales, 0),
    ):
        off = decode(whole[:, 0], scales[:, 0])[:, :, :live] + center - one[:, 0, :, :live].float()
        error = off.square().mean(-1).sqrt()  # rotating does not change it
        assert (error <= scales[:, 0, :, :live] * 0.501).all()
        assert error.max() > 0
        assert not whole[:, 0, :, live:].any()


def test_what_all_keys_share_costs_no_accuracy() -> None:
    group = LayerGroup((0, 1), CacheSpec.grouped(2, 64), 3)
    staged = Body.allocate(group, 1, 50, torch.randn)
    staged.planes[0][:] += 200 * torch.randn(2, 1, 2, 1, 64)
    slots = Body.allocate(group.stored_as("int8"), 2, 50, torch.zeros)
    slots.take(1, staged, 0, torch.arange(50).expand(2, 2, 50))
    whole, scales = slots.planes[:2]
    found = decode(whole[:, 1], scales[:, 1]) + slots.centers[0][:, 1, :, None]
    assert (found - staged.planes[0][:, 0]).abs().max() < 0.05
    assert not slots.centers[0][:, 0].any()


def test_logits_stay_close_while_the_ring_wraps(plain: LocalEngine, small: LocalEngine) -> None:
    asked = tiny.request(prompt(70), kv=KV)
    forced = prompt(60, 5)
    logits = []
    for engine in (plain, small):
        tiny.enter(engine, asked)
        logits.append(tiny.decode(engine, 60, forced=forced)[1])
        engine.release(0)
    spread = logits[0].std()
    assert (logits[0] - logits[1]).abs().mean() < 0.05 * spread
    assert not torch.equal(*logits)


def test_neighbours_drafts_and_a_move_change_nothing(small: LocalEngine) -> None:
    asked = tiny.request(prompt(66, 1), kv=KV, ignore_eos=True, temperature=0.8, seed=2)
    tiny.enter(small, asked)
    alone, _ = tiny.decode(small, 60)
    small.release(0)
    tiny.enter(small, tiny.request(prompt(50, 3), "n", KV, ignore_eos=True), slot=0)
    tiny.enter(small, asked, slot=1)
    tokens: list[int | None] = []
    while len(tokens) < 30:
        tokens += [one.token for one in small.sample().read()[1]]
        small.forward({1: [alone[len(tokens)], 9]})
    packet = small.export(1)
    small.release(1)
    small.restore(packet, 2)
    while len(tokens) < 60:
        tokens += [one.token for one in small.sample().read()[2]]
        small.forward()
    assert tokens[:60] == alone
    for slot in (0, 2):
        small.release(slot)


def test_going_on_from_encoded_slots_is_refused(small: LocalEngine) -> None:
    asked = tiny.request(prompt(20), kv=tiny.choice("snapstream", budget=40, turns="continue"))
    with pytest.raises(InvalidRequest, match="kv_format int8") as raised:
        small.admit(asked)
    assert raised.value.param == "kv_turns"
