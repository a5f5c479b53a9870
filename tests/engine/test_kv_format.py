"""Slots in fewer bits, held against slots in the engine's dtype."""

from pathlib import Path
from random import Random

import pytest
import torch

from ringkv.base.cache_spec import CacheSpec, LayerGroup, PlaneFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.cache.allocate import allocate_plain, allocate_slots
from ringkv.cache.filling import Kept
from ringkv.cache.steps import finished
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.encoding import ENCODINGS, PLAIN
from ringkv.kernels.hadamard import rotate
from ringkv.kernels.int8 import decode
from tests.engine import tiny
from tests.engine.reference import use_reference
from tests.engine.test_golden import LATENT

ENCODED: list[PlaneFormat] = ["int8", "int4"]
KV = tiny.choice("snapstream", budget=40, recent=8)


ROTATED = PLAIN._replace(encode=lambda vectors: (rotate(vectors),), decode=rotate)
"""What int4 does to vectors before and after it rounds, in float32."""


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
    return build(tiny.config(folder, dtype="bfloat16", slot_format=SlotFormat("int8"), speculate=3))


@pytest.fixture(scope="module")
def encoded(folder: Path, small: LocalEngine) -> dict[str, LocalEngine]:
    """An engine for each encoding. With 4 bits the first and last of three layers are plain."""
    int4 = build(tiny.config(folder, dtype="bfloat16", slot_format=SlotFormat("int4", skip=1), speculate=3))
    return {"int8": small, "int4": int4}


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    """An engine with multi-head latent attention, whose middle layer is encoded."""
    folder = tmp_path_factory.mktemp("latents")
    tiny.save(folder, "DeepseekV3", **LATENT)
    return build(tiny.config(folder, dtype="bfloat16", slot_format=SlotFormat("int4", skip=1), speculate=3))


def prompt(n: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(3, 199), k=n)


def test_a_slot_takes_a_byte_an_element_and_four_a_vector_beside_its_center_and_first_keys(
    plain: LocalEngine, small: LocalEngine
) -> None:
    layers, heads, width = 3, 2, 32
    assert plain.limits.slot_bytes == 64 * layers * 2 * heads * width * 2
    assert small.limits.slot_bytes == 64 * layers * 2 * heads * (width + 4) + layers * heads * width * 4 * (1 + 4)
    assert small.limits.entry_bytes == layers * 2 * heads * (width + 4)


def test_layers_at_the_ends_are_plain_if_they_are_skipped(encoded: dict[str, LocalEngine]) -> None:
    bodies = {body.group.layers: body.group.slots.encoding for body in encoded["int4"].batch.bodies}
    assert bodies == {(0, 2): "plain", (1,): "int4"}
    heads, width = 2, 32
    plain, int4 = 2 * 2 * heads * width * 2, 2 * heads * (width // 2 + 4)
    assert encoded["int4"].limits.entry_bytes == plain + int4
    assert encoded["int4"].limits.slot_bytes == 64 * (plain + int4) + heads * width * 4 * (1 + 4)


def test_inserted_entries_are_the_kept_ones_within_half_a_scale(plain: LocalEngine, small: LocalEngine) -> None:
    asked = tiny.request(prompt(70), kv=KV)
    for engine in (plain, small):
        tiny.enter(engine, asked)
    exact = plain.batch.bodies[0].planes
    keys, key_scales, values, value_scales = small.batch.bodies[0].planes
    centers = small.batch.bodies[0].slots.centers
    assert centers is not None
    center = centers[:, 0, :, : keys.shape[-1]]
    live = 40
    torch.testing.assert_close(center, exact[0][:, 0, :, :live].float().mean(2), rtol=1e-5, atol=1e-6)
    for one, whole, scales, common in (
        (exact[0], keys, key_scales, center[:, :, None]),
        (exact[1], values, value_scales, 0),
    ):
        off = decode(whole[:, 0], scales[:, 0])[:, :, :live] + common - one[:, 0, :, :live].float()
        error = off.square().mean(-1).sqrt()  # rotating does not change it
        assert (error <= scales[:, 0, :, :live] * 0.501).all()
        assert error.max() > 0
        assert not whole[:, 0, :, live:].any()


def test_what_all_keys_share_costs_no_accuracy() -> None:
    group = LayerGroup((0, 1), CacheSpec.grouped(2, 64), 3)
    staged = allocate_plain(group, 1, 50, torch.randn)
    staged.planes[0][:] += 200 * torch.randn(2, 1, 2, 1, 64)
    body = allocate_slots(group.stored_as("int8"), 2, 50, torch.zeros)
    finished(body.take(1, Kept(staged.planes, 0, torch.arange(50).expand(2, 2, 50))))
    (whole, scales, *_), centers = body.planes, body.slots.centers
    assert centers is not None
    found = decode(whole[:, 1], scales[:, 1]) + centers[:, 1, :, None, :64]
    assert (found - staged.planes[0][:, 0]).abs().max() < 0.05
    assert not centers[:, 0, :, :64].any()


@pytest.mark.parametrize("name", ENCODED)
def test_logits_stay_close_while_the_ring_wraps(plain: LocalEngine, encoded: dict[str, LocalEngine], name: str) -> None:
    asked = tiny.request(prompt(70), kv=KV)
    forced = prompt(60, 5)
    logits = []
    for engine in (plain, encoded[name]):
        tiny.enter(engine, asked)
        logits.append(tiny.decode(engine, 60, forced=forced)[1])
        engine.release(0)
    spread = logits[0].std()
    assert (logits[0] - logits[1]).abs().mean() < 0.05 * spread
    assert not torch.equal(*logits)


@pytest.mark.parametrize("name", [*ENCODED, "latents"])
def test_neighbours_drafts_and_a_move_change_nothing(
    encoded: dict[str, LocalEngine], latents: LocalEngine, name: str
) -> None:
    small = latents if name == "latents" else encoded[name]
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


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("Llama", {"head_dim": 64}),
        ("Qwen2", {"hidden_size": 512, "num_attention_heads": 4}),  # heads of 128; queries, keys and values have a bias
        ("Llama", {"head_dim": 96}),
    ],
)
def test_rotation_alone_changes_no_logits(
    kind: str, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.save(tmp_path, kind, **sizes)
    monkeypatch.setitem(ENCODINGS, "int4", ROTATED)  # type: ignore[arg-type]
    use_reference(monkeypatch)
    asked, logits = tiny.request(prompt(70), kv=KV), []
    names: tuple[PlaneFormat, ...] = ("plain", "int4")
    for name in names:
        engine = build(tiny.config(tmp_path, slot_format=SlotFormat(name)))
        tiny.enter(engine, asked)
        logits.append(tiny.decode(engine, 30, forced=prompt(30, 5))[1])
    assert not torch.equal(*logits)
    plain, rotated = logits
    error = (rotated - plain).norm(dim=-1) / plain.norm(dim=-1)
    assert error.max() < 2e-6, f"a step's logits differ by {error.max():.1e} of their norm; float32 rounds to 1.2e-7"


def test_a_head_width_that_words_do_not_divide_is_refused_with_its_number(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", head_dim=30)
    with pytest.raises(InvalidRequest, match=r"4 elements .* 30") as raised:
        build(tiny.config(tmp_path, slot_format=SlotFormat("int4")))
    assert raised.value.param == "kv_format"
