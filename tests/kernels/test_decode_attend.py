"""The C++ kernel and the torch reference against attention written out for one head of one slot."""

import math

import pytest
import torch

from ringkv.kernels import decode_attend

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(params=["reference", "native"])
def kernel(request: pytest.FixtureRequest) -> object:
    if request.param == "reference":
        return decode_attend.reference
    request.getfixturevalue("compiled")
    return decode_attend.decode_attend


def by_hand(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query [D] over its live entries, in float64."""
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
@pytest.mark.parametrize("width", [32, 96, 128, 256])
@pytest.mark.parametrize("groups", [2, 16])
def test_any_width_of_heads(width: int, groups: int) -> None:
    given = some(torch.bfloat16, groups=groups, width=width)
    numbers = torch.tensor([4, 0, 20], dtype=torch.int32), torch.tensor([289, 15, 528], dtype=torch.int32)
    want = decode_attend.reference(*(x.clone() for x in given), *numbers)
    torch.testing.assert_close(decode_attend.decode_attend(*given, *numbers), want, atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_slots_result_does_not_depend_on_its_neighbours_bit_for_bit(dtype: torch.dtype) -> None:
    q, k, v, keys, values = some(dtype)
    entry = torch.tensor([0, 5, 9], dtype=torch.int32)
    results = [
        decode_attend.decode_attend(q, k, v, keys.clone(), values.clone(), entry, torch.tensor(live, dtype=torch.int32))
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
