"""Attention on the device against the torch references."""

import pytest
import torch

from ringkv.kernels import decode_attend, prefill_attend
from ringkv.kernels.gpu.tiling import Tiling

pytestmark = pytest.mark.device

SCALE = 0.09
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def some(
    device: torch.device, dtype: torch.dtype, live: list[int], groups: int, width: int, capacity: int
) -> list[torch.Tensor]:
    """Return q, k, v, keys, values, slot, entry, live of `decode_attend`; slots are in reverse order of rows."""
    rows, heads = len(live), 8
    shapes = [(rows, heads, groups, width), *[(rows, heads, width)] * 2, *[(rows, heads, capacity, width)] * 2]
    slot = torch.arange(rows, dtype=torch.int32, device=device).flip(0)
    lives = torch.tensor(live, dtype=torch.int32, device=device)
    tensors = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    return [*tensors, slot, (lives - 1).clamp(min=0) // 2, lives]


def close(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    """Compare out and lse."""
    tolerance = TOLERANCE[found[0].dtype]
    torch.testing.assert_close(found[0].float(), wanted[0].float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-4, rtol=1e-4)


def compare(inputs: list[torch.Tensor], found: tuple[torch.Tensor, ...], wanted: list[torch.Tensor]) -> None:
    close(found, decode_attend.reference(*wanted, SCALE))
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
    compare(inputs, decode_attend.decode_attend(*inputs, SCALE), wanted)


@pytest.mark.parametrize("splits", [1, 3, 64])
@pytest.mark.parametrize(("block", "warps", "stages"), [(16, 2, 2), (64, 4, 3), (128, 8, 2)])
def test_any_tiling_gives_the_same_result(
    device: torch.device, splits: int, block: int, warps: int, stages: int
) -> None:
    from ringkv.kernels.gpu.decode_attend import decode_attend as attend

    inputs = some(device, torch.bfloat16, [4000, 0, 1, 2049, 77], 4, 128, 4000)
    wanted = [t.clone() for t in inputs]
    compare(inputs, attend(*inputs, SCALE, Tiling(splits, block, warps, stages)), wanted)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("fresh", "groups", "width"), [(1, 4, 128), (2, 3, 96), (4, 8, 128), (8, 20, 64)])
def test_several_fresh_tokens_see_what_as_many_steps_would(
    device: torch.device, dtype: torch.dtype, fresh: int, groups: int, width: int
) -> None:
    """The slots are one with free entries, a full one whose writes wrap, and one with few entries."""
    capacity = 4000
    _, _, _, keys, values, slot, _, live = some(device, dtype, [60, capacity, 3], groups, width, capacity)
    q = torch.randn(3, fresh, 8, groups, width, device=device).to(dtype)
    k, v = (torch.randn(3, fresh, 8, width, device=device).to(dtype) for _ in range(2))
    first = torch.tensor([60, capacity - 2, 3], device=device)
    entry = ((first[:, None] + torch.arange(fresh, device=device)) % capacity).int()
    found = decode_attend.fresh_attend(q, k, v, keys, values, slot, entry, live, SCALE)
    for t in range(fresh):
        seen = torch.maximum(live, entry[:, t] + 1)
        step = q[:, t], k[:, t], v[:, t], keys, values, slot, entry[:, t], seen
        close((found.out[:, t], found.lse[:, t]), decode_attend.reference(*step, SCALE))


def test_values_of_entries_that_are_not_live_do_not_matter(device: torch.device) -> None:
    inputs = some(device, torch.bfloat16, [130, 0, 1, 2049], 4, 128, 4000)
    want = decode_attend.decode_attend(*[t.clone() for t in inputs], SCALE)
    _, _, _, *planes, slots, entry, live = inputs
    for plane in planes:
        for slot, at, n in zip(slots.tolist(), entry.tolist(), live.tolist(), strict=True):
            plane[slot, :, n:] = float("nan")
            plane[slot, :, at] = float("inf")
    found = decode_attend.decode_attend(*inputs, SCALE)
    assert torch.equal(found.out, want.out)
    assert torch.equal(found.lse, want.lse)


def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(device: torch.device) -> None:
    results = []
    for live in ([4000, 77, 1], [3, 77, 0]):
        torch.manual_seed(0)
        inputs = some(device, torch.bfloat16, live, 4, 128, 4000)
        results.append(decode_attend.decode_attend(*inputs, SCALE).out[1])
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunk", [64, 512])
@pytest.mark.parametrize("sliding", [0, 100])
def test_prefill_attention_equals_the_reference(
    device: torch.device, dtype: torch.dtype, chunk: int, sliding: int
) -> None:
    heads, groups, width, staged, window, length = 8, 4, 128, 1024, 64, 900
    planes = [torch.zeros(heads, staged, width, device=device, dtype=dtype) for _ in range(2)]
    queries = torch.zeros(1, heads, groups, window, width, device=device, dtype=dtype)
    others = [t.clone() for t in (*planes, queries)]
    for start in range(0, length, chunk):
        q = torch.randn(chunk, heads, groups, width, device=device).to(dtype)
        k, v = (torch.randn(chunk, heads, width, device=device).to(dtype) for _ in range(2))
        span = prefill_attend.table([prefill_attend.Segment(0, chunk, 0, 0, start, length)])
        found = prefill_attend.prefill_attend(q, k, v, *planes, queries, span, SCALE, sliding)
        want = prefill_attend.reference(q, k, v, *others, span, SCALE, sliding)
        close(found, want)
    assert torch.equal(planes[0], others[0])
    assert torch.equal(queries, others[2])


def test_prefill_attention_never_stores_all_scores(device: torch.device) -> None:
    chunk, heads, groups, width, staged = 512, 8, 4, 128, 65536
    planes = [torch.zeros(heads, staged, width, device=device, dtype=torch.bfloat16) for _ in range(2)]
    window = torch.zeros(1, heads, groups, 64, width, device=device, dtype=torch.bfloat16)
    q = torch.randn(chunk, heads, groups, width, device=device).bfloat16()
    k = torch.randn(chunk, heads, width, device=device).bfloat16()
    segments = prefill_attend.table([prefill_attend.Segment(0, chunk, 0, 0, staged - chunk, staged)])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    prefill_attend.prefill_attend(q, k, k, *planes, window, segments, SCALE)
    scores = heads * groups * chunk * staged * 2
    assert torch.cuda.max_memory_allocated() - before < scores / 4
