"""Pages of int8 slots: beside int8 slots without pages, and beside plain pages."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.cache.pages_body import PagesBody
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.decode_attend_int8 import decode
from ringkv.kernels.decode_attend_pages import digest
from ringkv.models.config import load_config
from ringkv.models.slot_formats import check_on_cuda
from ringkv.plan.engine_footprint import engine_footprint
from tests.engine import tiny
from tests.engine.test_pages import CAPACITY, KV, PAGE, ROCKET, decoded

FULL = replace(KV, policy="full", budget=None)


@pytest.fixture(scope="module")
def paged(llama_dir: Path) -> LocalEngine:
    return build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, kv_page=PAGE, kv_format="int8"))


def test_a_budget_of_all_pages_has_the_bits_of_int8_without_pages(paged: LocalEngine, llama_dir: Path) -> None:
    kv = KVChoice("full", select=SnapKV(window=8))
    want = decoded(build(tiny.config(llama_dir, kv=kv, capacity=CAPACITY, kv_format="int8")), FULL)
    assert torch.equal(decoded(paged, replace(KV, budget=None)), want)
    assert torch.equal(decoded(paged, FULL, slot=2), want)
    off = decoded(paged, KV) - want
    assert not off[0].any()  # the prompt's own logits
    assert off[1:].abs().max() > 1e-3


def test_pages_of_a_compressed_prompt_that_are_all_read_have_the_bits_of_int8_without_pages(
    paged: LocalEngine, llama_dir: Path
) -> None:
    want = decoded(build(tiny.config(llama_dir, kv=ROCKET, capacity=CAPACITY, kv_format="int8")), ROCKET)
    assert torch.equal(decoded(paged, replace(ROCKET, read=160)), want)
    assert (decoded(paged, replace(ROCKET, read=64)) - want).abs().max() > 1e-3


def test_a_smaller_budget_reads_about_what_plain_pages_read(paged: LocalEngine, llama_dir: Path) -> None:
    plain = build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, kv_page=PAGE))
    want = decoded(plain, KV)
    assert (decoded(paged, KV) - want).abs().mean() < 0.05 * want.std()
    assert (decoded(plain, FULL) - want).abs().mean() > 0.05 * want.std()


def test_digests_are_of_decoded_keys_also_of_pages_that_steps_filled(paged: LocalEngine) -> None:
    decoded(paged, KV, slot=1)
    (body,) = paged.batch.bodies
    assert isinstance(body, PagesBody)
    keys = decode(*(plane[:, 1, :, :240] for plane in body.planes[:2]))
    wanted = digest(keys.unflatten(2, (-1, PAGE)), is_mean=True)
    torch.testing.assert_close(body.digests[:, 1, :, : 240 // PAGE], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_slot_takes_the_bytes_of_the_formula(llama_dir: Path, tmp_path: Path, skip: int, on_disk: bool) -> None:
    layers, heads, width, item = 3, 2, 32, 4
    tier = {"kv_tier": tmp_path} if on_disk else {}
    config = tiny.config(llama_dir, kv=KV, capacity=CAPACITY, kv_page=PAGE, kv_format="int8", kv_format_skip=skip)
    engine = build(replace(config, **tier))
    digests = layers * (CAPACITY // PAGE * heads * (2 * width * item + 4) + 20)
    encoded, plain = layers - 2 * skip, 2 * skip
    centers = encoded * heads * width * 4 * (1 + 4)
    entries = CAPACITY * 2 * heads * (encoded * (width + 4) + plain * width * item)
    assert engine.limits.slot_bytes == digests + centers + (0 if on_disk else entries)
    assert engine.limits.slot_bytes == engine_footprint(load_config(llama_dir), engine.config).slot


def test_slots_on_disk_have_the_bits_of_slots_in_memory(paged: LocalEngine, llama_dir: Path, tmp_path: Path) -> None:
    filed = build(replace(paged.config, kv_tier=tmp_path))
    assert torch.equal(decoded(filed, KV, slot=1), decoded(paged, KV, slot=1))


def test_a_request_gives_the_same_bits_alone_and_beside_others_and_in_another_slot(paged: LocalEngine) -> None:
    alone = decoded(paged, KV, slot=1)
    paged.release(1)
    tiny.enter(paged, tiny.request(tiny.prompt(250, 3), kv=replace(KV, budget=64)), slot=0)
    tiny.enter(paged, tiny.request(tiny.prompt(33, 4), kv=tiny.choice("snapstream")), slot=2)
    assert torch.equal(decoded(paged, KV, slot=1), alone)


def test_a_conversation_continues_from_pages(llama_dir: Path) -> None:
    engine = build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, kv_page=PAGE, kv_format="int8", store_bytes=10**7))
    kv = replace(KV, turns="continue")
    first = tiny.request(tiny.prompt(150), "one", kv, max_tokens=4, ignore_eos=True)
    tokens = tiny.serve(engine, first)["one"]
    before = [plane[:, 0, :, :153].clone() for plane in engine.batch.bodies[0].planes]
    second = tiny.request([*tiny.prompt(150), *tokens, *tiny.prompt(30, 5)], "two", kv)
    tiny.enter(engine, second, slot=1)
    after = [plane[:, 1, :, :153] for plane in engine.batch.bodies[0].planes]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_int8_pages_are_refused_on_cuda(paged: LocalEngine) -> None:
    with pytest.raises(
        InvalidRequest, match="arkvale is not implemented for kv_format int8 on CUDA, nor is kv_read; choose plain"
    ):
        check_on_cuda(load_config(paged.config.model_dir), paged.config.slot_format)
