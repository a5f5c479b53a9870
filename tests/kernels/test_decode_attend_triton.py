"""The Triton kernels of decode attention, run by Triton's interpreter on the CPU, against the torch reference.

The interpreter cannot multiply bfloat16; there the kernels multiply float32 copies of the same numbers.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from ringkv.kernels import decode_attend
from tests.kernels.interpreted import attend, interpreter

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
Inputs = list[torch.Tensor]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    try:
        with interpreter() as found:
            yield found
    except RuntimeError as error:
        if "0-dimensional arrays" not in str(error):
            raise
        pytest.skip("the interpreter of Triton before 3.7 does not run with NumPy from 2.4 on")


def some(
    live: list[int], dtype: torch.dtype = torch.float32, groups: int = 4, width: int = 64, capacity: int = 150
) -> Inputs:
    """Random tensors; slots are so full, and the new token's entry is the last live one in every other slot."""
    torch.manual_seed(groups * width)
    slots, heads = len(live), 2
    shapes = [(slots, heads, groups, width), *[(slots, heads, width)] * 2, *[(slots, heads, capacity, width)] * 2]
    entry = [max(0, n - 1) if slot % 2 else n // 3 for slot, n in enumerate(live)]
    numbers = [torch.tensor(t, dtype=torch.int32) for t in (entry, live)]
    return [*(torch.randn(shape).to(dtype) for shape in shapes), *numbers]


def compare(pool: ProcessPoolExecutor, inputs: Inputs, cut: tuple[int, int] | None) -> None:
    wanted = [t.clone() for t in inputs]
    out, keys, values = pool.submit(attend, *inputs, cut).result()
    want = decode_attend.reference(*wanted)
    close = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.float(), want.float(), atol=close, rtol=close)
    assert torch.equal(keys, wanted[3])
    assert torch.equal(values, wanted[4])


@pytest.mark.parametrize(
    ("groups", "width"), [(1, 64), (3, 64), (4, 64), (1, 96), (3, 96), (8, 96), (1, 128), (4, 128), (8, 128), (20, 128)]
)
def test_it_equals_the_reference_for_groupings_and_widths(pool: ProcessPoolExecutor, groups: int, width: int) -> None:
    compare(pool, some([150, 0, 33], groups=groups, width=width), (3, 32))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_it_equals_the_reference_in_every_type(pool: ProcessPoolExecutor, dtype: torch.dtype) -> None:
    compare(pool, some([150, 64, 1], dtype, width=128), (2, 32))


@pytest.mark.parametrize("splits", [1, 2, 7, 20])
@pytest.mark.parametrize("block", [16, 64])
def test_any_cut_gives_the_same(pool: ProcessPoolExecutor, splits: int, block: int) -> None:
    compare(pool, some([1, 17, 64, 150]), (splits, block))


def test_the_table_cuts_any_shape(pool: ProcessPoolExecutor) -> None:
    compare(pool, some([700, 3, 512, 0], capacity=700, width=256), None)


def test_a_cache_that_is_part_of_a_larger_tensor_is_addressed_by_its_strides(pool: ProcessPoolExecutor) -> None:
    q, k, v, keys, values, entry, live = some([100, 20])
    packed = torch.cat((k, v), 1)  # v as it comes out of one matrix with k
    layers = [torch.stack((plane, plane + 1), 1)[:, 1] for plane in (keys, values)]
    compare(pool, [q, packed[:, :2], packed[:, 2:], *layers, entry, live], (2, 32))


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")])
def test_what_stood_in_entries_that_are_not_live_does_not_matter(pool: ProcessPoolExecutor, rubbish: float) -> None:
    inputs = some([0, 1, 40, 129])
    *_, keys, values, entry, live = inputs
    want, _, _ = pool.submit(attend, *[t.clone() for t in inputs], (3, 32)).result()
    for slot, n in enumerate(live.tolist()):
        for plane in (keys, values):
            plane[slot, :, n:] = rubbish
            plane[slot, :, entry[slot]] = rubbish  # about to be overwritten
    out, _, _ = pool.submit(attend, *inputs, (3, 32)).result()
    assert torch.equal(out, want)


def test_a_free_slot_gives_zero_and_is_not_written(pool: ProcessPoolExecutor) -> None:
    inputs = some([0, 9])
    out, keys, values = pool.submit(attend, *inputs, (2, 16)).result()
    assert not out[0].any()
    assert torch.equal(keys[0], inputs[3][0])
    assert torch.equal(values[0], inputs[4][0])


def test_nan_in_one_slot_stays_there(pool: ProcessPoolExecutor) -> None:
    inputs = some([150, 150, 150])
    inputs[3][1], inputs[4][1] = float("nan"), float("nan")
    out, _, _ = pool.submit(attend, *inputs, (3, 32)).result()
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_a_slots_result_does_not_depend_on_its_neighbours_bit_for_bit(pool: ProcessPoolExecutor) -> None:
    results = []
    for live in ([150, 77, 1], [3, 77, 0], [64, 77, 149]):
        inputs = some([150, 77, 150])
        inputs[-1][:] = torch.tensor(live)
        inputs[-2][:] = 0
        results.append(pool.submit(attend, *inputs, (3, 32)).result()[0][1])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
