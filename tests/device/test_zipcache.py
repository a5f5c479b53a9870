"""Attention over slots in the format zipcache on the device against the torch reference, and an engine with them."""

from pathlib import Path

import pytest
import torch

from ringkv.base.zip_sizes import CHUNK
from ringkv.engine.build import build
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.attended import Attended
from ringkv.kernels.constants import BUFFERED
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.slots import Rows, Slots
from ringkv.kernels.zip_slots import ZipSlots
from tests.engine import tiny
from tests.kernels.entry_steps import Inputs, copied
from tests.kernels.zip_slots import filled, made

pytestmark = pytest.mark.device

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 1e-2}


def some(prompts: list[tuple[int, int]], dtype: torch.dtype, groups: int, width: int, heads: int = 3) -> Inputs:
    """Return a step, for prompts of so many tokens and so many that stay."""
    rows, capacity = len(prompts), max(n for n, _ in prompts) + 10
    slots = made(rows, heads, width, capacity, dtype)
    for slot, (n, fixed) in enumerate(prompts):
        if n:
            filled(slots, slot, n, fixed, seed=slot)
    vectors = [torch.randn(rows, heads, *shape, width).to(dtype) for shape in ((groups,), (), ())]
    columns = range(rows), [-1] * rows, [n + 1 if n else 0 for n, _ in prompts]
    of_rows = Rows(*(torch.tensor(list(column), dtype=torch.int32) for column in columns))
    return Inputs(*vectors, Slots("zipcache", tuple(slots)), of_rows)


def attend(inputs: Inputs) -> Attended:
    return decode_attend(*inputs, inputs.q.shape[-1] ** -0.5)


def compare(device: torch.device, inputs: Inputs) -> None:
    """Compare out, lse and the slots with the reference's."""
    on_device, tolerance = copied(inputs, device), TOLERANCE[inputs.q.dtype]
    want = decode_attend_reference.decode_attend(*inputs, inputs.q.shape[-1] ** -0.5)
    for ours, theirs in zip(attend(on_device), want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=tolerance, rtol=tolerance)
    for name, plane, theirs in zip(ZipSlots._fields, on_device.slots.planes, inputs.slots.planes, strict=True):
        ours = plane.cpu()
        if name == "attention":
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)
        else:
            assert torch.equal(ours.nan_to_num(-1), theirs.nan_to_num(-1)), name


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "groups"), [(64, 1), (80, 3), (96, 4), (128, 8), (256, 20)])
def test_it_equals_the_reference(device: torch.device, dtype: torch.dtype, width: int, groups: int) -> None:
    compare(device, some([(1500, 700), (0, 0), (3, 3), (620, 0), (77, 20)], dtype, groups, width))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [64, 80, 128, 256])
def test_a_full_buffer_becomes_a_chunk_with_the_bytes_of_the_reference(
    device: torch.device, dtype: torch.dtype, width: int
) -> None:
    inputs = some([(120, 20), (300, 20), (900, 400)], dtype, 2, width)
    slots = ZipSlots(*inputs.slots.planes)
    slots.counts[..., BUFFERED] = CHUNK
    slots.attention.uniform_()
    slots.plain_keys.nan_to_num_(1.5)
    slots.plain_values.nan_to_num_(1.5)
    inputs.rows.live[1] = 200  # so many are live without the oldest chunk
    compare(device, inputs)


def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(device: torch.device) -> None:
    results = []
    for live in ([901, 301, 78], [4, 301, 0]):
        inputs = copied(some([(900, 400), (300, 20), (77, 20)], torch.bfloat16, 4, 128), device)
        inputs.rows.live[:] = torch.tensor(live)
        results.append(attend(inputs).out[1])
    assert torch.equal(*results)


def test_graphs_do_not_change_the_tokens_of_an_engine_whose_chunks_fill(device: torch.device, tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama")
    answers = []
    for graphs in ("off", "compiled"):
        one = build(tiny.config(tmp_path, device=str(device), graphs=graphs, kv_format="zipcache"))
        tiny.enter(one, tiny.request([3 + 7 * i % 190 for i in range(200)]), slot=1)
        answers.append(tiny.decode(one, 120, slot=1))
    assert answers[0][0] == answers[1][0]
    torch.testing.assert_close(answers[0][1], answers[1][1], atol=1e-3, rtol=1e-3)
