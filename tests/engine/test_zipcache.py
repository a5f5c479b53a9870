"""Slots in the format zipcache, held against slots in the engine's dtype."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from ringkv.base.cache_spec import SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK
from ringkv.base.zip_sizes import ZipSizes
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.constants import BUFFERED, CHUNKS
from ringkv.kernels.zip_slots import ZipSlots
from ringkv.kernels.zip_tokens import decoded
from ringkv.plan.engine_footprint import engine_footprint
from tests.engine import tiny

CAPACITY, RING = 160, 110
KV = tiny.choice("snapstream", budget=CAPACITY, recent=RING)


def config(folder: Path, **changes: Any) -> Any:
    usual = {"kv": KV, "capacity": CAPACITY, "prompt_tokens": 256, "dtype": "bfloat16"}
    return tiny.config(folder, **{**usual, **changes})


def zipped(folder: Path, **changes: Any) -> Any:
    """With the first and last of three layers plain."""
    return config(folder, slot_format=SlotFormat("zipcache", skip=1), **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> LocalEngine:
    return build(config(folder))


@pytest.fixture(scope="module")
def small(folder: Path) -> LocalEngine:
    return build(zipped(folder, store_bytes=4_000_000))


def prompt(n: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(3, 199), k=n)


def contents(engine: LocalEngine, slot: int) -> list[torch.Tensor]:
    """Return what the zipped layer of a slot holds: keys, values, the attention that buffered keys got, counts."""
    (body,) = (body for body in engine.batch.bodies if body.group.slots.encoding == "zipcache")
    own = ZipSlots(*(part[0] for part in body.parts(slot, 0)))
    return [*decoded(own), own.attention[:, : own.held()[BUFFERED]].clone(), own.counts.clone()]


def test_the_allocator_counts_what_the_formula_and_the_planner_do(small: LocalEngine) -> None:
    heads, width, layers = 2, 32, {"plain": 2, "zipcache": 1}
    sizes = ZipSizes.of(CAPACITY)
    assert sizes == (4 + 100, 96 + 60, 64 + 40, 1 + 2)
    head = 2 * (104 * width * 2 + 156 * width // 2 + 104 * width // 4)  # keys and values: plain, 4 and 2 bits
    head += 3 * width * 2 * (4 + 1) + 260 * 2 * 2 + 100 * 4 + 5 * 4  # parameters, attention, counts
    expected = heads * (layers["zipcache"] * head + layers["plain"] * CAPACITY * 2 * width * 2)
    assert small.limits.slot_bytes == expected
    assert small.limits.slot_bytes == engine_footprint(small.model, small.config).slot


@pytest.mark.parametrize(("n", "steps"), [(250, 20), (30, 125)])
def test_logits_stay_close_as_long_as_both_show_the_same_tokens(
    plain: LocalEngine, small: LocalEngine, n: int, steps: int
) -> None:
    asked, forced, logits = tiny.request(prompt(n), kv=KV), prompt(steps, 5), []
    for engine in (plain, small):
        tiny.enter(engine, asked)
        logits.append(tiny.decode(engine, steps, forced=forced)[1])
    assert contents(small, 0)[-1][0, CHUNKS] == 1
    for engine in (plain, small):
        engine.release(0)
    assert (logits[0] - logits[1]).abs().mean() < 0.05 * logits[0].std()
    assert not torch.equal(*logits)


def test_neighbours_and_a_move_change_nothing(small: LocalEngine) -> None:
    asked = tiny.request(prompt(200, 1), kv=KV, ignore_eos=True, temperature=0.8, seed=2)
    tiny.enter(small, asked)
    alone, _ = tiny.decode(small, 130)
    before = contents(small, 0)
    small.release(0)
    tiny.enter(small, tiny.request(prompt(50, 3), "n", KV, ignore_eos=True), slot=0)
    tiny.enter(small, asked, slot=1)
    tokens, _ = tiny.decode(small, 60, slot=1)
    packet = small.export(1)
    small.release(1)
    small.restore(packet, 2)
    more, _ = tiny.decode(small, 70, slot=2)
    assert tokens + more == alone
    assert all(torch.equal(one, other) for one, other in zip(before, contents(small, 2), strict=True))
    for slot in (0, 2):
        small.release(slot)


def test_a_prompt_in_chunks_fills_a_slot_like_one_at_once(folder: Path) -> None:
    asked, found = tiny.request(prompt(256, 2), kv=KV), []
    for chunk in (64, 256):  # prefill attention works in units of 64 tokens, or of 32 with bf16 instructions
        engine = build(zipped(folder, chunk=chunk))
        tiny.enter(engine, asked)
        found.append(contents(engine, 0))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_cached_prefix_fills_a_slot_like_a_prefilled_one(small: LocalEngine) -> None:
    shared = prompt(2 * BLOCK, 8)
    tiny.enter(small, tiny.request([*shared, *prompt(40, 9)], kv=KV), slot=0)
    asked = tiny.request([*shared, *prompt(60, 10)], kv=KV)
    assert small.begin(asked, 0).tokens == 2 * BLOCK
    tiny.enter(small, asked, slot=1)
    engine = build(replace(small.config, store_bytes=0))
    tiny.enter(engine, asked)
    assert all(torch.equal(*pair) for pair in zip(contents(small, 1), contents(engine, 0), strict=True))
    for slot in (0, 1):
        small.release(slot)


@pytest.mark.parametrize("policy", ["full", "streaming", "snapkv"])
def test_every_policy_decodes(plain: LocalEngine, small: LocalEngine, policy: str) -> None:
    kv = tiny.choice(policy, budget=CAPACITY, recent=60)
    asked, forced, logits = tiny.request(prompt(90, 4), kv=kv), prompt(60, 5), []
    for engine in (plain, small):
        tiny.enter(engine, asked)
        logits.append(tiny.decode(engine, 60, forced=forced)[1])
        engine.release(0)
    assert (logits[0] - logits[1]).abs().mean() < 0.1 * logits[0].std()


def test_what_does_not_compose_is_refused_by_name(folder: Path, tmp_path: Path, small: LocalEngine) -> None:
    tiny.save(tmp_path, "Mistral", sliding_window=16)
    asked = tiny.request(prompt(20), kv=tiny.choice("snapstream", turns="continue"))
    for run, param, text in (
        (lambda: build(zipped(folder, speculate=3)), "speculate", "kv_format zipcache"),
        (lambda: build(zipped(tmp_path)), "kv_format", "sliding windows of 16 tokens"),
        (lambda: small.admit(asked), "kv_turns", "kv_format zipcache"),
    ):
        with pytest.raises(InvalidRequest, match=text) as raised:
            run()
        assert raised.value.param == param
