"""Bodies in each encoding: their bytes, and what `take` writes beside what decode attention writes."""

from itertools import product
from typing import get_args

import pytest
import torch

from ringkv.base.cache_spec import (
    CacheSpec,
    LayerGroup,
    PageFormat,
    PlaneFormat,
    Reading,
    SlotFormat,
)
from ringkv.cache import filling
from ringkv.cache.allocate import allocate_plain, allocate_slots
from ringkv.cache.filling import Kept
from ringkv.cache.steps import finished
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.encoding import ENCODINGS, LATENT_ENCODINGS
from ringkv.kernels.slots import Rows

ENCODED = [name for name in ENCODINGS if name != "plain"]
READINGS = ["everything", "ragged", PageFormat(16)]


@pytest.mark.parametrize("name", get_args(PlaneFormat))
@pytest.mark.parametrize("width", [32, 64, 96, 40])
def test_allocated_bytes_are_those_of_the_spec(name: PlaneFormat, width: int) -> None:
    group = LayerGroup((0, 1, 2), CacheSpec.grouped(2, width), 3).stored_as(name)
    body = allocate_slots(group, 5, 7, torch.zeros)
    assert body.bytes == 5 * group.slot_bytes(7, 4)
    assert body.entry_bytes == group.token_bytes(4)


@pytest.mark.parametrize("queries", [0, 5])
@pytest.mark.parametrize(("name", "reading"), [*product(ENCODINGS, READINGS), ("plain", PageFormat(16, resident=1))])
def test_what_slots_have_beside_their_planes_is_in_the_bytes_of_the_spec(
    name: PlaneFormat, reading: Reading, queries: int
) -> None:
    group = LayerGroup((0, 1, 2), CacheSpec.grouped(2, 32), 3, slots=SlotFormat(name, reading, queries)).in_slots
    body = allocate_slots(group, 5, 64, torch.zeros)
    assert body.bytes == 5 * group.slot_bytes(64, 4)
    assert body.host_bytes == 5 * group.host_bytes(64, 4)


@pytest.mark.parametrize("reading", [PageFormat(16, on_disk=True), PageFormat(16, resident=1)])
def test_staged_entries_are_in_memory_wherever_those_of_slots_are(reading: Reading) -> None:
    group = LayerGroup((0, 1, 2), CacheSpec.grouped(2, 32), 3, slots=SlotFormat(reading=reading))
    staged = allocate_plain(group, 1, 64, torch.zeros)
    assert (staged.bytes, staged.file_bytes, staged.host_bytes) == (64 * group.token_bytes(4), 0, 0)


@pytest.mark.parametrize("name", LATENT_ENCODINGS)
@pytest.mark.parametrize(("rank", "rope"), [(512, 64), (128, 32), (32, 32)])
def test_latents_take_the_bytes_of_the_spec_with_a_scale_for_each_group(
    name: PlaneFormat, rank: int, rope: int
) -> None:
    group = LayerGroup((0, 1, 2), CacheSpec.latent(rank, rope), 16).stored_as(name)
    body = allocate_slots(group, 5, 7, torch.zeros)
    assert body.bytes == 5 * group.slot_bytes(7, 4)
    assert body.entry_bytes == group.token_bytes(4)
    sizes = {"plain": 4 * 576, "int8": 576 + 5 * 4, "int4": 288 + 5 * 4}
    assert rank != 512 or group.token_bytes(4) == 3 * sizes[name]


@pytest.mark.parametrize(("count", "fixed", "kept"), [(20, 12, 4), (20, 2, 2), (3, 12, 3), (20, 0, 0)])
@pytest.mark.parametrize("name", ENCODED)
def test_the_first_keys_that_stay_are_kept_exactly(name: PlaneFormat, count: int, fixed: int, kept: int) -> None:
    torch.manual_seed(1)
    group = LayerGroup((0, 1), CacheSpec.grouped(2, 64), 3)
    staged = allocate_plain(group, 1, 20, torch.randn)
    body = allocate_slots(group.stored_as(name), 2, 20, torch.zeros)
    index = torch.randperm(20)[:count].expand(2, 2, count)
    finished(body.take(1, Kept(staged.planes, 0, index, fixed)))
    centers = body.slots.centers
    assert centers is not None
    center, *first = centers[:, 1].unflatten(-1, (-1, 64)).unbind(2)
    for entry, exact in enumerate(first):
        if entry < kept:
            torch.testing.assert_close(exact + center, staged.planes[0][:, 0, :, index[0, 0, entry]])
        else:
            assert exact.isnan().all()
    assert centers[:, 0, :, 64:].isnan().all()


@pytest.mark.parametrize("name", ENCODED)
def test_entries_that_are_encoded_some_at_a_time_have_the_same_bytes(
    name: PlaneFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    group = LayerGroup((0, 1), CacheSpec.grouped(2, 64), 3)
    staged = allocate_plain(group, 1, 20, torch.randn)
    index = torch.randperm(20)[:17].expand(2, 2, 17)
    filled = []
    for at_once in (20, 5):
        monkeypatch.setattr(filling, "ENCODED_AT_ONCE", at_once)
        body = allocate_slots(group.stored_as(name), 1, 20, torch.ones)
        finished(body.take(0, Kept(staged.planes, 0, index, 9)))
        assert body.slots.centers is not None
        filled.append([tensor.nan_to_num(-1) for tensor in (*body.planes, body.slots.centers)])
        assert not body.planes[0][:, :, :, 17:].any()
    assert all(torch.equal(*pair) for pair in zip(*filled, strict=True))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *((name, CacheSpec.grouped(2, 64)) for name in ENCODED),
        *((name, CacheSpec.latent(128, 32)) for name in LATENT_ENCODINGS if name != "plain"),
    ],
)
def test_prefill_and_decode_write_the_same_bytes_for_a_vector(name: PlaneFormat, spec: CacheSpec) -> None:
    torch.manual_seed(1)
    group, entries = LayerGroup((0,), spec, 3), 20
    staged = allocate_plain(group, 1, entries, torch.zeros)
    for plane in staged.planes:
        plane[:] = torch.randn(plane.shape).bfloat16() * 3
    taken, stepped = (allocate_slots(group.stored_as(name), 1, entries, torch.zeros) for _ in range(2))
    finished(taken.take(0, Kept(staged.planes, 0, torch.arange(entries).expand(1, spec.key.heads, entries))))
    assert stepped.slots.centers is not None
    stepped.slots.centers[:] = taken.slots.centers
    slot = torch.zeros(1, dtype=torch.int32)
    for step in range(entries):
        k, v = [*(plane[0, :, :, step].bfloat16() for plane in staged.planes), None][:2]
        q = torch.randn(1, spec.key.heads, 3, spec.key.width).bfloat16()
        entry = torch.tensor([step], dtype=torch.int32)
        decode_attend(q, k, v, stepped.layer(0), Rows(slot, entry, entry + 1), 0.1)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(stepped.planes, taken.planes, strict=True))
