"""The Triton kernels of attention over slots in the format zipcache in Triton's interpreter, against the reference."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from ringkv.base.zip_sizes import CHUNK
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.constants import BUFFERED
from ringkv.kernels.slots import Rows, Slots
from ringkv.kernels.zip_slots import ZipSlots
from tests.kernels.entry_steps import Inputs, copied
from tests.kernels.interpreted import SCALE, Cut, decode_attend
from tests.kernels.zip_slots import filled, made

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def some(
    prompts: list[tuple[int, int]], dtype: torch.dtype = torch.float32, groups: int = 2, width: int = 64, heads: int = 1
) -> Inputs:
    """Return a step, for prompts of so many tokens and so many that stay."""
    rows, capacity = len(prompts), max(n for n, _ in prompts) + 10
    slots = made(rows + 1, heads, width, capacity, dtype)
    for slot, (n, fixed) in zip(range(rows, 0, -1), prompts, strict=True):
        filled(slots, slot, n, fixed, seed=slot)
    vectors = [torch.randn(rows, heads, *shape, width).to(dtype) for shape in ((groups,), (), ())]
    columns = [*range(rows, 0, -1)], [-1] * rows, [n + 1 if n else 0 for n, _ in prompts]
    of_rows = Rows(*(torch.tensor(column, dtype=torch.int32) for column in columns))
    return Inputs(*vectors, Slots("zipcache", tuple(slots)), of_rows)


def compare(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> None:
    """Compare out, lse and the slots afterwards: all bytes, and what the buffer's keys got."""
    twin, tolerance = copied(inputs), TOLERANCE[inputs.q.dtype]
    out, lse = decode_attend_reference.decode_attend(*twin, SCALE)
    found, slots = pool.submit(decode_attend, tuple(inputs), cut).result()
    torch.testing.assert_close(found[0], out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], lse, atol=tolerance, rtol=tolerance)
    for name, ours, theirs in zip(ZipSlots._fields, slots.planes, twin.slots.planes, strict=True):
        if name == "attention":
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)
        else:
            assert torch.equal(ours.nan_to_num(-1), theirs.nan_to_num(-1)), name


@pytest.mark.slow  # interprets kernels
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


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize("width", [40, 96])
def test_a_full_buffer_becomes_a_chunk_with_the_bytes_of_the_reference(pool: ProcessPoolExecutor, width: int) -> None:
    """It takes a free place first, then that of the oldest chunk."""
    inputs = some([(120, 20), (300, 20)], width=width, heads=2)
    slots = ZipSlots(*inputs.slots.planes)
    slots.plain_keys[:, 0, :, 3] = 0  # a channel without a spread
    slots.plain_values[:, 0, :, 5] = 0
    slots.counts[..., BUFFERED] = CHUNK
    slots.attention.uniform_()
    slots.attention[1, 0] = 0.5 * torch.arange(CHUNK, 0, -1)  # all are equally salient
    slots.plain_keys.nan_to_num_(1.5)
    slots.plain_values.nan_to_num_(1.5)
    inputs.rows.live[1] = 200  # so many are live without the oldest chunk
    compare(pool, inputs, (2, 64))
    assert slots.counts[1, 0].tolist() == slots.counts[1, 1].tolist()


def test_a_row_has_the_same_bits_beside_any_neighbours(pool: ProcessPoolExecutor) -> None:
    inputs = some([(300, 100), (20, 20)], width=32)
    alone = copied(inputs)
    alone.rows.live[1] = 0
    found, slots = pool.submit(decode_attend, tuple(inputs), (3, 64)).result()
    other, left = pool.submit(decode_attend, tuple(alone), (3, 64)).result()
    assert torch.equal(found[0][0], other[0][0])
    assert not other[0][1].any()
    assert (other[1][1] == -torch.inf).all()
    for ours, theirs in zip(slots.planes, left.planes, strict=True):
        assert torch.equal(ours[2].nan_to_num(-1), theirs[2].nan_to_num(-1))
    assert torch.equal(ZipSlots(*left.planes).counts[1], ZipSlots(*alone.slots.planes).counts[1])
