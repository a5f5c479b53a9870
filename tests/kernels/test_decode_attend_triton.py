"""The Triton kernels of decode attention in Triton's interpreter on the CPU, against the torch reference.

The interpreter cannot multiply bfloat16, so the kernels multiply float32 copies there.
"""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from ringkv.kernels import decode_attend
from tests.kernels.interpreted import SCALE, Cut
from tests.kernels.interpreted import cache_attend as cache_attend_on
from tests.kernels.interpreted import decode_attend as attend_on

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
Inputs = list[torch.Tensor]


def some(
    live: list[int], dtype: torch.dtype = torch.float32, groups: int = 4, width: int = 64, capacity: int = 150
) -> Inputs:
    """Return q, k, v, keys, values, slot, entry, live: a row for each live length, and one more slot, which is unused.

    The new token's entry is the last live one in every other row.
    """
    torch.manual_seed(groups * width)
    rows, heads = len(live), 2
    planes = [(rows + 1, heads, capacity, width)] * 2
    shapes = [(rows, heads, groups, width), *[(rows, heads, width)] * 2, *planes]
    entry = [max(0, n - 1) if row % 2 else n // 3 for row, n in enumerate(live)]
    slot = [*range(rows, 1, -1), 0][:rows]  # from the last to the first; slot 1 is unused
    indices = [torch.tensor(t, dtype=torch.int32) for t in (slot, entry, live)]
    return [*(torch.randn(shape).to(dtype) for shape in shapes), *indices]


def attend(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> tuple[Inputs, Inputs]:
    """Return out and lse, and keys and values afterwards."""
    return pool.submit(attend_on, inputs, cut).result()


def close(found: Inputs, wanted: Inputs) -> None:
    """Compare out and lse."""
    off = TOLERANCE[found[0].dtype]
    torch.testing.assert_close(found[0].float(), wanted[0].float(), atol=off, rtol=off)
    torch.testing.assert_close(found[1], wanted[1], atol=2e-6, rtol=2e-6)


def compare(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> None:
    wanted = [t.clone() for t in inputs]
    found, planes = attend(pool, inputs, cut)
    close(found, decode_attend.reference(*wanted, SCALE))
    assert torch.equal(planes[0], wanted[3])
    assert torch.equal(planes[1], wanted[4])


@pytest.mark.parametrize(
    ("groups", "width"), [(1, 64), (3, 64), (4, 64), (1, 96), (3, 96), (8, 96), (1, 128), (4, 128), (8, 128), (20, 128)]
)
def test_it_equals_the_reference_for_groupings_and_widths(pool: ProcessPoolExecutor, groups: int, width: int) -> None:
    compare(pool, some([150, 0, 33], groups=groups, width=width), (3, 32))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_it_equals_the_reference_in_every_dtype(pool: ProcessPoolExecutor, dtype: torch.dtype) -> None:
    compare(pool, some([150, 64, 1], dtype, width=128), (2, 32))


@pytest.mark.parametrize("splits", [1, 2, 7, 20])
@pytest.mark.parametrize("block", [16, 64])
def test_any_tiling_gives_the_same_result(pool: ProcessPoolExecutor, splits: int, block: int) -> None:
    compare(pool, some([1, 17, 64, 150]), (splits, block))


def test_the_usual_tiling_fits_any_shape(pool: ProcessPoolExecutor) -> None:
    compare(pool, some([700, 3, 512, 0], capacity=700, width=256), None)


def test_a_cache_that_is_part_of_a_larger_tensor_is_addressed_by_its_strides(pool: ProcessPoolExecutor) -> None:
    q, k, v, keys, values, *indices = some([100, 20])
    packed = torch.cat((k, v), 1)  # k and v are views of one product
    layers = [torch.stack((plane, plane + 1), 1)[:, 1] for plane in (keys, values)]
    compare(pool, [q, packed[:, :2], packed[:, 2:], *layers, *indices], (2, 32))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_the_content_of_entries_that_are_not_live_is_ignored(pool: ProcessPoolExecutor, garbage: float) -> None:
    inputs = some([0, 1, 40, 129])
    want, _ = attend(pool, [t.clone() for t in inputs], (3, 32))
    *_, keys, values, slots, entry, live = inputs
    for plane in (keys, values):
        plane[1] = garbage
        for slot, at, n in zip(slots.tolist(), entry.tolist(), live.tolist(), strict=True):
            plane[slot, :, n:] = garbage
            plane[slot, :, at] = garbage  # about to be overwritten
    found, _ = attend(pool, inputs, (3, 32))
    assert torch.equal(found[0], want[0])
    assert torch.equal(found[1], want[1])


def test_a_free_row_gives_zero_and_its_slot_is_not_written(pool: ProcessPoolExecutor) -> None:
    inputs = some([0, 9])
    (out, lse), planes = attend(pool, inputs, (2, 16))
    assert not out[0].any()
    assert (lse[0] == float("-inf")).all()
    slot = inputs[5][0]
    assert torch.equal(planes[0][slot], inputs[3][slot])
    assert torch.equal(planes[1][slot], inputs[4][slot])


def test_nan_in_one_slot_stays_there(pool: ProcessPoolExecutor) -> None:
    inputs = some([150, 150, 150])
    slot = inputs[5][1]
    inputs[3][slot], inputs[4][slot] = float("nan"), float("nan")
    (out, lse), _ = attend(pool, inputs, (3, 32))
    assert out[1].isnan().all()
    assert lse[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(pool: ProcessPoolExecutor) -> None:
    results = []
    for live in ([150, 77, 1], [3, 77, 0], [64, 77, 149]):
        inputs = some([150, 77, 150])
        inputs[-1][:] = torch.tensor(live)
        inputs[-2][:] = 0
        results.append(attend(pool, inputs, (3, 32))[0][0][1])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def drafts(
    fresh: int, dtype: torch.dtype = torch.float32, groups: int = 4, width: int = 64, capacity: int = 150
) -> Inputs:
    """Return q, keys, values, slot, holes, live of `cache_attend`: part of a slot, all, none, a ring of three."""
    inputs = some([60, capacity, 0, 3], dtype, groups, width, capacity)
    live = inputs[-1]
    q = torch.randn(len(live), 2, fresh * groups, width).to(dtype)
    first = torch.tensor([60, capacity - 1, 0, 0])[:, None]
    holes = (first + torch.arange(fresh)) % torch.tensor([capacity, capacity, capacity, 3])[:, None]
    return [q, *inputs[3:6], holes.int(), live]


def compare_cache(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> Inputs:
    found: Inputs = pool.submit(cache_attend_on, inputs, cut).result()
    close(found, decode_attend.cache_reference(*inputs, SCALE))
    return found


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("fresh", "groups", "width"), [(1, 4, 64), (2, 3, 96), (3, 1, 128)])
def test_queries_of_fresh_tokens_see_what_the_reference_sees(
    pool: ProcessPoolExecutor, dtype: torch.dtype, fresh: int, groups: int, width: int
) -> None:
    compare_cache(pool, drafts(fresh, dtype, groups, width), (3, 32))


def test_more_queries_than_one_program_processes_are_divided(pool: ProcessPoolExecutor) -> None:
    compare_cache(pool, drafts(8, groups=5), (3, 32))
    compare(pool, some([150, 0, 33], groups=70), (3, 32))


@pytest.mark.parametrize("splits", [1, 7, 20])
@pytest.mark.parametrize("block", [16, 64])
def test_any_tiling_gives_fresh_tokens_the_same_result(pool: ProcessPoolExecutor, splits: int, block: int) -> None:
    compare_cache(pool, drafts(4), (splits, block))


def test_the_usual_tiling_fits_any_shape_of_fresh_tokens(pool: ProcessPoolExecutor) -> None:
    compare_cache(pool, drafts(4, capacity=700), None)


def test_a_token_whose_predecessors_overwrite_all_that_is_live_sees_nothing(pool: ProcessPoolExecutor) -> None:
    inputs = drafts(4)
    out, lse = compare_cache(pool, inputs, (2, 16))
    last = lse[3].unflatten(1, (4, 4))  # of a ring with three entries
    assert last[:, :2].isfinite().all()
    assert (last[:, 2:] == float("-inf")).all()
    assert not out[3].unflatten(1, (4, 4))[:, 2:].any()
