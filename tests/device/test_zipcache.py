"""Attention over slots in the format zipcache on the device against the torch reference, and an engine with them."""

from pathlib import Path

import pytest
import torch

from ringkv.base.zip_sizes import CHUNK
from ringkv.engine.build import build
from ringkv.kernels.decode_attend_zip import decode_attend_zip, reference
from ringkv.kernels.zip_slots import BUFFERED, ZipSlots
from tests.engine import tiny
from tests.kernels.zip_slots import filled, made

pytestmark = pytest.mark.device

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 1e-2}
Tensors = list[torch.Tensor]


def some(
    device: torch.device, prompts: list[tuple[int, int]], dtype: torch.dtype, groups: int, width: int, heads: int = 3
) -> Tensors:
    """Return q, k, v, the slots, slot, live on the device, for prompts of so many tokens and so many that stay."""
    rows, capacity = len(prompts), max(n for n, _ in prompts) + 10
    slots = made(rows, heads, width, capacity, dtype)
    for at, (n, fixed) in enumerate(prompts):
        if n:
            filled(slots, at, n, fixed, seed=at)
    vectors = [torch.randn(rows, heads, *shape, width).to(dtype) for shape in ((groups,), (), ())]
    numbers = [[*range(rows)], [n + 1 if n else 0 for n, _ in prompts]]
    return [one.to(device) for one in (*vectors, *slots, *(torch.tensor(one, dtype=torch.int32) for one in numbers))]


def step(inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    *others, slot, live = inputs
    return decode_attend_zip(*others, slot, torch.zeros_like(slot), live, others[0].shape[-1] ** -0.5)


def compare(inputs: Tensors) -> None:
    """Compare out, lse and the slots with the reference's."""
    twin, tolerance = [t.clone() for t in inputs], TOLERANCE[inputs[0].dtype]
    out, lse = reference(*twin, twin[0].shape[-1] ** -0.5)
    found = step(inputs)
    torch.testing.assert_close(found[0], out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], lse, atol=tolerance, rtol=tolerance)
    for name, ours, theirs in zip(ZipSlots._fields, inputs[3:14], twin[3:14], strict=True):
        if name == "attention":
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)
        else:
            assert torch.equal(ours.nan_to_num(-1), theirs.nan_to_num(-1)), name


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "groups"), [(64, 1), (80, 3), (96, 4), (128, 8), (256, 20)])
def test_it_equals_the_reference(device: torch.device, dtype: torch.dtype, width: int, groups: int) -> None:
    compare(some(device, [(1500, 700), (0, 0), (3, 3), (620, 0), (77, 20)], dtype, groups, width))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [64, 80, 128, 256])
def test_a_full_buffer_becomes_a_chunk_with_the_bytes_of_the_reference(
    device: torch.device, dtype: torch.dtype, width: int
) -> None:
    inputs = some(device, [(120, 20), (300, 20), (900, 400)], dtype, 2, width)
    slots = ZipSlots(*inputs[3:14])
    slots.counts[..., BUFFERED] = CHUNK
    slots.attention.uniform_()
    slots.plain_keys.nan_to_num_(1.5)
    slots.plain_values.nan_to_num_(1.5)
    inputs[-1][1] = 200  # so many are live without the oldest chunk
    compare(inputs)


def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(device: torch.device) -> None:
    results = []
    for live in ([901, 301, 78], [4, 301, 0]):
        inputs = some(device, [(900, 400), (300, 20), (77, 20)], torch.bfloat16, 4, 128)
        inputs[-1][:] = torch.tensor(live)
        results.append(step(inputs)[0][1])
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
