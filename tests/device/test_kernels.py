"""Attention on the device against the torch references."""

import pytest
import torch

from ringkv.kernels import decode_attend, prefill_attend
from ringkv.kernels.gpu.tiling import Tiling

pytestmark = pytest.mark.device

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def some(
    device: torch.device, dtype: torch.dtype, live: list[int], groups: int, width: int, capacity: int
) -> list[torch.Tensor]:
    slots, heads = len(live), 8
    shapes = [(slots, heads, groups, width), *[(slots, heads, width)] * 2, *[(slots, heads, capacity, width)] * 2]
    lives = torch.tensor(live, dtype=torch.int32, device=device)
    return [*(torch.randn(shape, device=device).to(dtype) for shape in shapes), (lives - 1).clamp(min=0) // 2, lives]


def compare(inputs: list[torch.Tensor], out: torch.Tensor, wanted: list[torch.Tensor]) -> None:
    close = TOLERANCE[out.dtype]
    want = decode_attend.reference(*wanted)
    torch.testing.assert_close(out.float(), want.float(), atol=close, rtol=close)
    assert torch.equal(inputs[3], wanted[3])
    assert torch.equal(inputs[4], wanted[4])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [64, 96, 128, 256])
@pytest.mark.parametrize("groups", [1, 3, 4, 8, 20])
def test_decode_attention_equals_the_reference(
    device: torch.device, dtype: torch.dtype, groups: int, width: int
) -> None:
    inputs = some(device, dtype, [4000, 0, 1, 2049, 77], groups, width, 4000)
    wanted = [t.clone() for t in inputs]
    compare(inputs, decode_attend.decode_attend(*inputs), wanted)


@pytest.mark.parametrize("splits", [1, 3, 64])
@pytest.mark.parametrize(("block", "warps", "stages"), [(16, 2, 2), (64, 4, 3), (128, 8, 2)])
def test_any_cut_gives_the_same(device: torch.device, splits: int, block: int, warps: int, stages: int) -> None:
    from ringkv.kernels.gpu.decode_attend import launch

    inputs = some(device, torch.bfloat16, [4000, 0, 1, 2049, 77], 4, 128, 4000)
    wanted = [t.clone() for t in inputs]
    compare(inputs, launch(*inputs, Tiling(splits, block, warps, stages)), wanted)


def test_rubbish_in_entries_that_are_not_live_does_not_matter(device: torch.device) -> None:
    inputs = some(device, torch.bfloat16, [130, 0, 1, 2049], 4, 128, 4000)
    want = decode_attend.decode_attend(*[t.clone() for t in inputs])
    for slot, n in enumerate(inputs[-1].tolist()):
        for plane in inputs[3:5]:
            plane[slot, :, n:] = float("nan")
            plane[slot, :, inputs[5][slot]] = float("inf")
    assert torch.equal(decode_attend.decode_attend(*inputs), want)


def test_a_slots_result_does_not_depend_on_its_neighbours_bit_for_bit(device: torch.device) -> None:
    results = []
    for live in ([4000, 77, 1], [3, 77, 0]):
        torch.manual_seed(0)
        results.append(decode_attend.decode_attend(*some(device, torch.bfloat16, live, 4, 128, 4000))[1])
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunk", [64, 512])
def test_prefill_attention_equals_the_reference(device: torch.device, dtype: torch.dtype, chunk: int) -> None:
    heads, groups, width, staged, window, length = 8, 4, 128, 1024, 64, 900
    planes = [torch.zeros(heads, staged, width, device=device, dtype=dtype) for _ in range(2)]
    queries = torch.zeros(heads, groups, window, width, device=device, dtype=dtype)
    others = [t.clone() for t in (*planes, queries)]
    for start in range(0, length, chunk):
        q = torch.randn(chunk, heads, groups, width, device=device).to(dtype)
        k, v = (torch.randn(chunk, heads, width, device=device).to(dtype) for _ in range(2))
        span = torch.tensor([start, length])
        out = prefill_attend.prefill_attend(q, k, v, *planes, queries, span)
        want = prefill_attend.reference(q, k, v, *others, span)
        close = TOLERANCE[dtype]
        torch.testing.assert_close(out.float(), want.float(), atol=close, rtol=close)
    assert torch.equal(planes[0], others[0])
    assert torch.equal(queries, others[2])


def test_prefill_attention_never_holds_all_scores(device: torch.device) -> None:
    chunk, heads, groups, width, staged = 512, 8, 4, 128, 65536
    planes = [torch.zeros(heads, staged, width, device=device, dtype=torch.bfloat16) for _ in range(2)]
    window = torch.zeros(heads, groups, 64, width, device=device, dtype=torch.bfloat16)
    q = torch.randn(chunk, heads, groups, width, device=device).bfloat16()
    k = torch.randn(chunk, heads, width, device=device).bfloat16()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    prefill_attend.prefill_attend(q, k, k, *planes, window, torch.tensor([staged - chunk, staged]))
    scores = heads * groups * chunk * staged * 2
    assert torch.cuda.max_memory_allocated() - before < scores / 4
