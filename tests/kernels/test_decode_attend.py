"""The C++ kernel and the torch reference against float64 attention of one head of one slot."""

import math
from functools import partial

import pytest
import torch

from ringkv.kernels import decode_attend

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def run(function, q, k, v, keys, values, entry, live):  # type: ignore[no-untyped-def]
    """Return a kernel's output, with row i in slot i and the usual scale."""
    slot = torch.arange(len(q), dtype=torch.int32)
    return function(q, k, v, keys, values, slot, entry, live, q.shape[-1] ** -0.5)[0]


@pytest.fixture(params=["reference", "native"])
def kernel(request: pytest.FixtureRequest) -> object:
    if request.param == "reference":
        return partial(run, decode_attend.reference)
    request.getfixturevalue("compiled")
    return partial(run, decode_attend.decode_attend)


def by_hand(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return attention of one query [D] over its live entries, in float64."""
    weights = torch.softmax(keys.double() @ q.double() / math.sqrt(len(q)), 0)
    return weights @ values.double()


def some(dtype: torch.dtype, slots: int = 3, heads: int = 2, groups: int = 3, width: int = 64, capacity: int = 700):  # type: ignore[no-untyped-def]
    torch.manual_seed(groups)
    shapes = [(slots, heads, groups, width), *[(slots, heads, width)] * 2, *[(slots, heads, capacity, width)] * 2]
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("groups", [1, 3, 6, 7])
def test_each_head_attends_to_its_slots_live_entries(kernel, dtype: torch.dtype, groups: int) -> None:  # type: ignore[no-untyped-def]
    q, k, v, keys, values = some(dtype, groups=groups)
    live, entry = torch.tensor([700, 257, 1], dtype=torch.int32), torch.tensor([3, 256, 0], dtype=torch.int32)
    before = keys.clone()
    out = kernel(q, k, v, keys, values, entry, live)
    for b in range(3):
        n = int(live[b])
        assert torch.equal(keys[b, :, entry[b]], k[b])
        assert torch.equal(values[b, :, entry[b]], v[b])
        assert (keys[b] != before[b]).any(-1).sum() == 2  # one entry a head
        for h in range(2):
            for g in range(groups):
                want = by_hand(q[b, h, g], keys[b, h, :n], values[b, h, :n])
                torch.testing.assert_close(out[b, h, g].double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_free_slot_is_not_written_and_gives_zero(kernel) -> None:  # type: ignore[no-untyped-def]
    q, k, v, keys, values = some(torch.float32)
    before = keys.clone(), values.clone()
    out = kernel(q, k, v, keys, values, torch.zeros(3, dtype=torch.int32), torch.tensor([0, 5, 0], dtype=torch.int32))
    assert torch.equal(keys[0], before[0][0])
    assert torch.equal(values[2], before[1][2])
    assert not out[0].any()
    assert not out[2].any()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("width", [32, 48, 80, 96, 100, 120, 128, 256])
@pytest.mark.parametrize("groups", [2, 16])
def test_any_width_of_heads(width: int, groups: int) -> None:
    given = some(torch.bfloat16, groups=groups, width=width)
    indices = torch.tensor([4, 0, 20], dtype=torch.int32), torch.tensor([289, 15, 528], dtype=torch.int32)
    want = run(decode_attend.reference, *(x.clone() for x in given), *indices)
    torch.testing.assert_close(run(decode_attend.decode_attend, *given, *indices), want, atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_slots_result_does_not_depend_on_its_neighbours_bit_for_bit(dtype: torch.dtype) -> None:
    q, k, v, keys, values = some(dtype)
    entry = torch.tensor([0, 5, 9], dtype=torch.int32)
    results = [
        run(decode_attend.decode_attend, q, k, v, keys.clone(), values.clone(), entry, torch.tensor(live).int())
        for live in ([1, 600, 700], [700, 600, 0], [0, 600, 33])
    ]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][1], results[2][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_in_one_slot_stays_there(kernel, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    q, k, v, keys, values = some(dtype)
    keys[1].fill_(float("nan"))
    values[1].fill_(float("nan"))
    full = torch.full((3,), 700, dtype=torch.int32)
    out = kernel(q, k, v, keys, values, full - 1, full)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


@pytest.fixture(params=["any", "native"])
def operators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The references, or the C++ kernels."""
    if request.param == "native":
        request.getfixturevalue("compiled")
    else:
        monkeypatch.setattr(decode_attend, "needs_reference", lambda q, name: True)


def drafts(fresh: int, dtype: torch.dtype = torch.float32):  # type: ignore[no-untyped-def]
    """Four rows in slots 2, 0, 3 and 1. The first has free entries, the second has wrapped, and the last is free."""
    torch.manual_seed(fresh)
    q = torch.randn(4, fresh, 2, 3, 64).to(dtype)
    k, v = torch.randn(2, 4, fresh, 2, 64).to(dtype)
    keys, values = torch.randn(2, 4, 2, 700, 64).to(dtype)
    slot = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    first, live = torch.tensor([300, 698, 255, 0]), torch.tensor([300, 700, 700, 0], dtype=torch.int32)
    entry = first[:, None] + torch.arange(fresh)
    entry[1] = 4 + (entry[1] - 4) % 696  # a ring behind 4 sinks
    return q, k, v, keys, values, slot, entry.int(), live


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("fresh", [1, 4])
def test_several_fresh_tokens_see_what_as_many_steps_would(fresh: int) -> None:
    q, k, v, keys, values, slot, entry, live = drafts(fresh)
    found = decode_attend.fresh_attend(q, k, v, keys, values, slot, entry, live, 0.125)
    for t in range(fresh):
        seen = torch.where(live > 0, torch.minimum(torch.maximum(live, entry[:, t] + 1), torch.tensor(700)), 0).int()
        step = decode_attend.decode_attend(q[:, t], k[:, t], v[:, t], keys, values, slot, entry[:, t], seen, 0.125)
        torch.testing.assert_close(found.out[:3, t], step.out[:3], atol=2e-6, rtol=2e-6)
        torch.testing.assert_close(found.lse[:3, t], step.lse[:3], atol=2e-6, rtol=2e-6)


@pytest.mark.usefixtures("operators")
def test_fresh_tokens_do_not_change_the_cache_until_they_are_committed() -> None:
    q, k, v, keys, values, slot, entry, live = drafts(4)
    before = keys.clone(), values.clone()
    decode_attend.fresh_attend(q, k, v, keys, values, slot, entry, live, 0.125)
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])
    decode_attend.commit(keys, values, k, v, slot, entry, torch.tensor([2, 4, 1, 0], dtype=torch.int32))
    wanted = before[0].clone()
    for row, count in enumerate([2, 4, 1, 0]):
        for t in range(count):
            wanted[slot[row], :, entry[row, t]] = k[row, t]
    assert torch.equal(keys, wanted)
    assert torch.equal(values != before[1], keys != before[0])


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_read_and_write_the_slots_they_name(dtype: torch.dtype) -> None:
    q, k, v, keys, values, slot, entry, live = (x[:, 0] if x.dim() == 5 else x for x in drafts(1, dtype))
    k, v, entry = k[:, 0] if k.dim() == 4 else k, v[:, 0] if v.dim() == 4 else v, entry[:, 0]
    moved = keys[slot.long()].clone(), values[slot.long()].clone()
    live = torch.maximum(live, (entry + 1) * (live > 0)).int()
    found = decode_attend.decode_attend(q, k, v, keys, values, slot, entry, live, 0.125)
    straight = torch.arange(4, dtype=torch.int32)
    wanted = decode_attend.decode_attend(q, k, v, *moved, straight, entry, live, 0.125)
    assert torch.equal(found.out, wanted.out)
    assert torch.equal(found.lse, wanted.lse)
    assert torch.equal(keys[slot.long()], moved[0])
