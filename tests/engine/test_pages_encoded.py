"""Pages of encoded slots: beside slots of the encoding without pages, and beside plain pages."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import PageFormat, PlaneFormat, SlotFormat
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.encoding import ENCODINGS
from ringkv.kernels.pages import digest
from ringkv.models.config import load_config
from ringkv.plan.engine_footprint import engine_footprint
from tests.engine import tiny
from tests.engine.test_pages import CAPACITY, KV, PAGE, decoded, index

FULL = replace(KV, policy="full", budget=None)
NEAR: Mapping[PlaneFormat, float] = {"int8": 0.05, "int4": 0.2}  # error of logits over their spread
BYTES: Mapping[PlaneFormat, int] = {"int8": 32 + 4, "int4": 32 // 2 + 4}  # of a vector of 32 elements


@pytest.fixture(scope="module", params=NEAR)
def encoding(request: pytest.FixtureRequest) -> PlaneFormat:
    found: PlaneFormat = request.param
    return found


@pytest.fixture(scope="module")
def paged(llama_dir: Path, encoding: PlaneFormat) -> LocalEngine:
    return built(llama_dir, SlotFormat(encoding, PageFormat(PAGE)))


def built(folder: Path, slots: SlotFormat, kv: KVChoice = KV) -> LocalEngine:
    return build(tiny.config(folder, kv=kv, capacity=CAPACITY, slot_format=slots))


def test_a_budget_of_all_pages_has_the_bits_of_slots_without_pages(
    paged: LocalEngine, llama_dir: Path, encoding: PlaneFormat
) -> None:
    kv = KVChoice("full", select=SnapKV(window=8))
    want = decoded(built(llama_dir, SlotFormat(encoding), kv), FULL)
    assert torch.equal(decoded(paged, replace(KV, budget=None)), want)
    assert torch.equal(decoded(paged, FULL, slot=2), want)
    off = decoded(paged, KV) - want
    assert not off[0].any()  # the prompt's own logits
    assert off[1:].abs().max() > 1e-3


def test_a_smaller_budget_reads_about_what_plain_pages_read(
    paged: LocalEngine, llama_dir: Path, encoding: PlaneFormat
) -> None:
    plain = built(llama_dir, SlotFormat(reading=PageFormat(PAGE)))
    want = decoded(plain, KV)
    assert (decoded(paged, KV) - want).abs().mean() < NEAR[encoding] * want.std()
    assert (decoded(plain, FULL) - want).abs().mean() > 0.05 * want.std()


def test_digests_are_of_decoded_keys_also_of_pages_that_steps_filled(paged: LocalEngine, encoding: PlaneFormat) -> None:
    decoded(paged, KV, slot=1)
    (body,) = paged.batch.bodies
    keys = ENCODINGS[encoding].decode(*(plane[:, 1, :, :240] for plane in body.planes[:2]))
    wanted = digest(keys.unflatten(2, (-1, PAGE)))
    torch.testing.assert_close(index(paged).digests[:, 1, :, : 240 // PAGE], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_slot_takes_the_bytes_of_the_formula(
    llama_dir: Path, tmp_path: Path, encoding: PlaneFormat, skip: int, on_disk: bool
) -> None:
    layers, heads, width, item = 3, 2, 32, 4
    slots = SlotFormat(encoding, PageFormat(PAGE, on_disk=on_disk), skip=skip)
    config = tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=slots)
    engine = build(replace(config, kv_tier=tmp_path if on_disk else None))
    digests = layers * (CAPACITY // PAGE * heads * (2 * width * item + 4) + 12)
    encoded, plain = layers - 2 * skip, 2 * skip
    centers = encoded * heads * width * 4 * (1 + 4)
    entries = CAPACITY * 2 * heads * (encoded * BYTES[encoding] + plain * width * item)
    assert engine.limits.slot_bytes == digests + centers + (0 if on_disk else entries)
    assert engine.limits.slot_bytes == engine_footprint(load_config(llama_dir), engine.config).slot


def test_slots_on_disk_have_the_bits_of_slots_in_memory(paged: LocalEngine, llama_dir: Path, tmp_path: Path) -> None:
    slots = paged.config.slot_format._replace(reading=PageFormat(PAGE, on_disk=True))
    filed = build(replace(paged.config, slot_format=slots, kv_tier=tmp_path))
    assert torch.equal(decoded(filed, KV, slot=1), decoded(paged, KV, slot=1))


def test_a_conversation_continues_from_pages(paged: LocalEngine) -> None:
    engine = build(replace(paged.config, store_bytes=10**7))
    kv = replace(KV, turns="continue")
    first = tiny.request(tiny.prompt(150), "one", kv, max_tokens=4, ignore_eos=True)
    tokens = tiny.serve(engine, first)["one"]
    before = [plane[:, 0, :, :153].clone() for plane in engine.batch.bodies[0].planes]
    second = tiny.request([*tiny.prompt(150), *tokens, *tiny.prompt(30, 5)], "two", kv)
    tiny.enter(engine, second, slot=1)
    after = [plane[:, 1, :, :153] for plane in engine.batch.bodies[0].planes]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
