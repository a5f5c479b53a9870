"""Bodies in each storage format: their bytes, and what `take` writes beside what decode attention writes."""

from typing import get_args

import pytest
import torch

from ringkv.base.cache_spec import IN_CHUNKS, LATENT_FORMATS, CacheSpec, LayerGroup, PlaneFormat
from ringkv.cache.body import Body
from ringkv.cache.formats import storage as formats
from ringkv.cache.formats.registry import storage
from ringkv.cache.slot_bodies import allocate_slots

ENCODED = [name for name in get_args(PlaneFormat) if name not in ("plain", IN_CHUNKS)]


@pytest.mark.parametrize("name", get_args(PlaneFormat))
@pytest.mark.parametrize("width", [32, 64, 96, 40])
def test_allocated_bytes_are_those_of_the_spec(name: PlaneFormat, width: int) -> None:
    group = LayerGroup((0, 1, 2), CacheSpec.grouped(2, width), 3).stored_as(name)
    body = allocate_slots(group, 5, 7, torch.zeros)
    assert body.bytes == 5 * group.slot_bytes(7, 4)
    assert body.entry_bytes == group.token_bytes(4)


@pytest.mark.parametrize("name", LATENT_FORMATS)
@pytest.mark.parametrize(("rank", "rope"), [(512, 64), (128, 32), (32, 32)])
def test_latents_take_the_bytes_of_the_spec_with_a_scale_for_each_group(
    name: PlaneFormat, rank: int, rope: int
) -> None:
    group = LayerGroup((0, 1, 2), CacheSpec.latent(rank, rope), 16).stored_as(name)
    body = Body.allocate(group, 5, 7, torch.zeros)
    assert body.bytes == 5 * group.slot_bytes(7, 4)
    assert body.entry_bytes == group.token_bytes(4)
    sizes = {"plain": 4 * 576, "int8": 576 + 5 * 4, "fp8": 576 + 5 * 2, "int4": 288 + 5 * 4}
    assert rank != 512 or group.token_bytes(4) == 3 * sizes[name]


@pytest.mark.parametrize(("count", "fixed", "kept"), [(20, 12, 4), (20, 2, 2), (3, 12, 3), (20, 0, 0)])
@pytest.mark.parametrize("name", ENCODED)
def test_the_first_keys_that_stay_are_kept_exactly(name: PlaneFormat, count: int, fixed: int, kept: int) -> None:
    torch.manual_seed(1)
    group = LayerGroup((0, 1), CacheSpec.grouped(2, 64), 3)
    staged = Body.allocate(group, 1, 20, torch.randn)
    slots = Body.allocate(group.stored_as(name), 2, 20, torch.zeros)
    index = torch.randperm(20)[:count].expand(2, 2, count)
    slots.take(1, staged, 0, index, fixed)
    center, *first = slots.beside[0][:, 1].unflatten(-1, (-1, 64)).unbind(2)
    for at, exact in enumerate(first):
        if at < kept:
            torch.testing.assert_close(exact + center, staged.planes[0][:, 0, :, index[0, 0, at]])
        else:
            assert exact.isnan().all()
    assert slots.beside[0][:, 0, :, 64:].isnan().all()


@pytest.mark.parametrize("name", ENCODED)
def test_entries_that_are_encoded_some_at_a_time_have_the_same_bytes(
    name: PlaneFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    group = LayerGroup((0, 1), CacheSpec.grouped(2, 64), 3)
    staged = Body.allocate(group, 1, 20, torch.randn)
    index = torch.randperm(20)[:17].expand(2, 2, 17)
    found = []
    for at_once in (20, 5):
        monkeypatch.setattr(formats, "ENCODED_AT_ONCE", at_once)
        slots = Body.allocate(group.stored_as(name), 1, 20, torch.ones)
        slots.take(0, staged, 0, index, 9)
        found.append([plane.nan_to_num(-1) for plane in (*slots.planes, *slots.beside)])
        assert not slots.planes[0][:, :, :, 17:].any()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *((name, CacheSpec.grouped(2, 64)) for name in ENCODED),
        *((name, CacheSpec.latent(128, 32)) for name in LATENT_FORMATS if name != "plain"),
    ],
)
def test_prefill_and_decode_write_the_same_bytes_for_a_vector(name: PlaneFormat, spec: CacheSpec) -> None:
    torch.manual_seed(1)
    group, entries = LayerGroup((0,), spec, 3), 20
    staged = Body.allocate(group, 1, entries, torch.zeros)
    for plane in staged.planes:
        plane[:] = torch.randn(plane.shape).bfloat16() * 3
    taken, stepped = (Body.allocate(group.stored_as(name), 1, entries, torch.zeros) for _ in range(2))
    taken.take(0, staged, 0, torch.arange(entries).expand(1, spec.key.heads, entries))
    stepped.beside[0][:] = taken.beside[0]
    slot = torch.zeros(1, dtype=torch.int32)
    for at in range(entries):
        new = [plane[0, :, :, at].bfloat16() for plane in staged.planes]
        q = torch.randn(1, spec.key.heads, 3, spec.key.width).bfloat16()
        entry = torch.tensor([at], dtype=torch.int32)
        attend = storage(group.stored_as(name).spec.key).attend
        attend(q, *new, *stepped.layer(0), slot, entry, entry + 1, 0.1)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(stepped.planes, taken.planes, strict=True))
