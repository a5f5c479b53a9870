"""The Triton kernels of attention over slots in the format zipcache in Triton's interpreter, against the reference."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from ringkv.base.zip_sizes import CHUNK
from ringkv.kernels.decode_attend_zip import reference
from ringkv.kernels.zip_slots import BUFFERED, ZipSlots
from tests.kernels.interpreted import SCALE, Cut, zip_attend
from tests.kernels.zip_slots import filled, made

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
Tensors = list[torch.Tensor]


def some(
    prompts: list[tuple[int, int]], dtype: torch.dtype = torch.float32, groups: int = 2, width: int = 64, heads: int = 1
) -> Tensors:
    """Return q, k, v, the slots, slot, live, for prompts of so many tokens and so many that stay."""
    rows, capacity = len(prompts), max(n for n, _ in prompts) + 10
    slots = made(rows + 1, heads, width, capacity, dtype)
    for at, (n, fixed) in zip(range(rows, 0, -1), prompts, strict=True):
        filled(slots, at, n, fixed, seed=at)
    vectors = [torch.randn(rows, heads, *shape, width).to(dtype) for shape in ((groups,), (), ())]
    numbers = [[*range(rows, 0, -1)], [n + 1 if n else 0 for n, _ in prompts]]
    return [*vectors, *slots, *(torch.tensor(one, dtype=torch.int32) for one in numbers)]


def compare(pool: ProcessPoolExecutor, inputs: Tensors, cut: Cut) -> None:
    """Compare out, lse and the slots afterwards: all bytes, and what the buffer's keys got."""
    twin, tolerance = [t.clone() for t in inputs], TOLERANCE[inputs[0].dtype]
    out, lse = reference(*twin, SCALE)
    found, slots = pool.submit(zip_attend, inputs, cut).result()
    torch.testing.assert_close(found[0], out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], lse, atol=tolerance, rtol=tolerance)
    for name, ours, theirs in zip(ZipSlots._fields, slots, twin[3:14], strict=True):
        if name == "attention":
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)
        else:
            assert torch.equal(ours.nan_to_num(-1), theirs.nan_to_num(-1)), name


@pytest.mark.parametrize(
    ("width", "groups", "prompts", "cut"),
    [
        (64, 1, [(330, 40), (0, 0)], (3, 64)),
        (80, 3, [(104, 104), (230, 20)], (2, 64)),
        (128, 20, [(160, 70)], (1, 16)),
        (32, 2, [(3, 3), (101, 1), (1, 0)], (2, 32)),
    ],
)
def test_it_equals_the_reference_for_groupings_widths_and_splits(
    pool: ProcessPoolExecutor, width: int, groups: int, prompts: list[tuple[int, int]], cut: Cut
) -> None:
    compare(pool, some(prompts, groups=groups, width=width), cut)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_equals_the_reference_in_16_bits(pool: ProcessPoolExecutor, dtype: torch.dtype) -> None:
    compare(pool, some([(260, 30), (40, 40)], dtype, heads=2), None)


@pytest.mark.parametrize("width", [40, 96])
def test_a_full_buffer_becomes_a_chunk_with_the_bytes_of_the_reference(pool: ProcessPoolExecutor, width: int) -> None:
    """It takes a free place first, then that of the oldest chunk."""
    inputs = some([(120, 20), (300, 20)], width=width, heads=2)
    slots = ZipSlots(*inputs[3:14])
    slots.plain_keys[:, 0, :, 3] = 0  # a channel without a spread
    slots.plain_values[:, 0, :, 5] = 0
    slots.counts[..., BUFFERED] = CHUNK
    slots.attention.uniform_()
    slots.attention[1, 0] = 0.5 * torch.arange(CHUNK, 0, -1)  # all are equally salient
    slots.plain_keys.nan_to_num_(1.5)
    slots.plain_values.nan_to_num_(1.5)
    inputs[-1][1] = 200  # so many are live without the oldest chunk
    compare(pool, inputs, (2, 64))
    assert slots.counts[1, 0].tolist() == slots.counts[1, 1].tolist()


def test_a_row_has_the_same_bits_beside_any_neighbours(pool: ProcessPoolExecutor) -> None:
    inputs = some([(300, 100), (20, 20)], width=32)
    alone = [t.clone() for t in inputs]
    alone[-1][1] = 0
    found, slots = pool.submit(zip_attend, inputs, (3, 64)).result()
    other, left = pool.submit(zip_attend, alone, (3, 64)).result()
    assert torch.equal(found[0][0], other[0][0])
    assert not other[0][1].any()
    assert (other[1][1] == -torch.inf).all()
    assert all(
        torch.equal(ours[2].nan_to_num(-1), theirs[2].nan_to_num(-1)) for ours, theirs in zip(slots, left, strict=True)
    )
    assert torch.equal(left[-1][1], alone[13][1])


def test_the_operator_runs_the_kernels_on_cuda() -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key("ringkv::decode_attend_zip", "CUDA")
