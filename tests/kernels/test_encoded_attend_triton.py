"""The Triton kernels of attention over encoded entries in Triton's interpreter, against the torch references."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from ringkv.kernels.encoded_attend import NO_KEY
from tests.kernels.encoded import FORMATS
from tests.kernels.interpreted import SCALE, Cut, encoded_attend, encoded_write

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
Tensors = list[torch.Tensor]


def some(
    name: str, live: list[int], dtype: torch.dtype = torch.float32, groups: int = 2, width: int = 64, heads: int = 1
) -> Tensors:
    """Return q, k, v, the planes, centers, slot, entry, live: magnitudes differ, and rows have a slot less."""
    torch.manual_seed(groups * width)
    rows, capacity = len(live), max(live) + 3
    planes: Tensors = []
    for encoding in FORMATS[name].encodings:
        sizes = torch.logspace(-4, 1, capacity)[torch.randperm(capacity)][:, None]
        planes += encoding.encode(torch.randn(rows + 1, heads, capacity, width) * sizes)
    vectors = [torch.randn(rows, heads, *shape, width).to(dtype) for shape in ((groups,), (), ())]
    numbers = [torch.tensor(n, dtype=torch.int32) for n in ([*range(rows, 0, -1)], [n // 2 for n in live], live)]
    return [*vectors, *planes, torch.randn(rows + 1, heads, width), *numbers]


def compare(pool: ProcessPoolExecutor, name: str, inputs: Tensors, cut: Cut) -> Tensors:
    """Compare out, lse and the planes afterwards; return the planes."""
    twin, tolerance = [t.clone() for t in inputs], TOLERANCE[inputs[0].dtype]
    out, lse = FORMATS[name].reference(*twin, SCALE)
    found, planes = pool.submit(encoded_attend, name, inputs, cut).result()
    torch.testing.assert_close(found[0], out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], lse, atol=tolerance, rtol=tolerance)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(planes, twin[3:7], strict=True))
    return list(planes)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("width", "groups", "splits"), [(64, 1, 1), (80, 3, 4), (128, 20, 2)])
def test_it_equals_the_reference_for_groupings_widths_and_splits(
    pool: ProcessPoolExecutor, name: str, width: int, groups: int, splits: int
) -> None:
    compare(pool, name, some(name, [39, 0], groups=groups, width=width), (splits, 16))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_equals_the_reference_in_16_bits(pool: ProcessPoolExecutor, name: str, dtype: torch.dtype) -> None:
    compare(pool, name, some(name, [20, 1], dtype), None)


@pytest.mark.parametrize("name", FORMATS)
def test_the_operators_run_the_kernels_on_cuda(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ringkv::decode_attend_{name}", "CUDA")


@pytest.mark.parametrize("name", ["int8", "int4", "turbo4"])
@pytest.mark.parametrize("live", [2, 37])
def test_first_keys_that_are_exact_replace_the_stored_ones(pool: ProcessPoolExecutor, name: str, live: int) -> None:
    inputs = some(name, [live], heads=2)
    exact = 3 * torch.randn(2, 2, 3, 64)
    exact[:, 0, 1] = NO_KEY
    exact[:, 1] = NO_KEY
    inputs[7] = torch.cat((inputs[7], exact.flatten(2)), -1)
    compare(pool, name, inputs, (2, 16))


@pytest.mark.parametrize("name", FORMATS)
def test_a_cache_that_is_part_of_a_larger_tensor_is_addressed_by_its_strides(
    pool: ProcessPoolExecutor, name: str
) -> None:
    q, k, v, *others = some(name, [30, 9], width=32)
    packed = torch.cat((k, v), 1)  # k and v are views of one product
    planes = [torch.stack((plane, plane + 1), 1)[:, 0] for plane in others[:4]]
    compare(pool, name, [q, packed[:, :1], packed[:, 1:], *planes, *others[4:]], (1, 32))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("width", [40, 96, 256])
def test_the_bytes_are_those_of_the_reference_at_all_magnitudes(
    pool: ProcessPoolExecutor, name: str, width: int
) -> None:
    _, k, v, *others = some(name, [3] * 6, heads=2, width=width)
    sizes = torch.logspace(-7, 7, 6)[:, None, None]
    k[0], v[1] = others[4][6], 0  # slot 6 is of row 0: both vectors are 0
    k, v = k * sizes, v * sizes
    v[2, 0, 0], v[2, 1] = 1e30, 2.0 ** torch.randint(-30, 30, (width,))
    planes = pool.submit(encoded_write, name, [k, v, *[t.clone() for t in others]]).result()
    twin = [t.clone() for t in others]
    FORMATS[name].reference(torch.zeros_like(k)[:, :, None], k, v, *twin, SCALE)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(planes, twin[:4], strict=True))


@pytest.mark.parametrize("name", FORMATS)
def test_entries_that_are_not_live_do_not_matter_and_nan_stays_in_its_slot(
    pool: ProcessPoolExecutor, name: str
) -> None:
    inputs = some(name, [18, 18], width=32)
    want, _ = pool.submit(encoded_attend, name, [t.clone() for t in inputs], (2, 16)).result()
    for scales in (inputs[4], inputs[6]):
        scales[1, :, 18:] = float("nan")  # of row 1
        scales[2, :, 5] = float("nan")  # of row 0
    found, _ = pool.submit(encoded_attend, name, inputs, (2, 16)).result()
    assert torch.equal(found[0][1], want[0][1])
    assert torch.equal(found[1][1], want[1][1])
    assert found[0][0].isnan().all()
    assert found[1][0].isnan().all()
