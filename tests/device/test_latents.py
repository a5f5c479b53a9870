"""Attention over latents on the device against the torch references."""

import pytest
import torch

from ringkv.kernels import decode_attend, prefill_attend
from ringkv.kernels.gpu.tiling import Tiling
from ringkv.kernels.latent_attend import decode_attend_latent, prefill_attend_latent
from tests.device.test_kernels import SCALE, close

pytestmark = pytest.mark.device
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def step(
    device: torch.device, dtype: torch.dtype, live: list[int], groups: int, width: int = 576
) -> list[torch.Tensor]:
    """Return q, k, latents, slot, entry, live of `decode_attend_latent`; slots are in reverse order of rows."""
    rows = len(live)
    shapes = [(rows, 1, groups, width), (rows, 1, width), (rows, 1, 4000, width)]
    slot = torch.arange(rows, dtype=torch.int32, device=device).flip(0)
    lives = torch.tensor(live, dtype=torch.int32, device=device)
    tensors = [(torch.randn(shape, device=device) / 2).to(dtype) for shape in shapes]
    return [*tensors, slot, (lives - 1).clamp(min=0) // 2, lives]


def compare(inputs: list[torch.Tensor], cut: Tiling | None = None) -> None:
    q, k, latents, *indices = (t.clone() for t in inputs)
    if cut is None:
        found: tuple[torch.Tensor, torch.Tensor] = decode_attend_latent(*inputs, SCALE)
    else:
        from ringkv.kernels.gpu import latent_attend as gpu

        found = gpu.decode_attend_latent(*inputs, SCALE, cut)
    close(found, decode_attend.reference(q, k, k, latents, latents, *indices, SCALE))
    assert torch.equal(inputs[2], latents)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "width"), [(16, 576), (20, 576), (128, 576), (3, 100), (16, 320)])
def test_a_step_equals_the_reference(device: torch.device, dtype: torch.dtype, groups: int, width: int) -> None:
    compare(step(device, dtype, [4000, 0, 1, 2049, 77], groups, width))


@pytest.mark.parametrize("splits", [1, 3, 64])
@pytest.mark.parametrize(("block", "warps", "stages"), [(16, 4, 2), (32, 8, 3), (64, 8, 2)])
def test_any_tiling_gives_the_same_result(
    device: torch.device, splits: int, block: int, warps: int, stages: int
) -> None:
    compare(step(device, torch.bfloat16, [4000, 0, 1, 2049, 77], 16), Tiling(splits, block, warps, stages))


def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(device: torch.device) -> None:
    results = []
    for live in ([4000, 77, 1], [3, 77, 0]):
        torch.manual_seed(0)
        results.append(decode_attend_latent(*step(device, torch.bfloat16, live, 16), SCALE).out[1])
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("chunk", "groups"), [(64, 16), (300, 20), (512, 128)])
def test_prefill_equals_the_reference(device: torch.device, dtype: torch.dtype, chunk: int, groups: int) -> None:
    staged, window, length, width = 1024, 64, 900, 576
    latents = torch.zeros(1, staged, width, device=device, dtype=dtype)
    queries = torch.zeros(1, 1, groups, window, width, device=device, dtype=dtype)
    other, others = latents.clone(), queries.clone()
    for start in range(0, length, chunk):
        q, k = ((torch.randn(chunk, 1, *more, width, device=device) / 2).to(dtype) for more in ((groups,), ()))
        span = prefill_attend.table([prefill_attend.Segment(0, min(chunk, staged - start), 0, 0, start, length)])
        found = prefill_attend_latent(q, k, latents, queries, span, SCALE)
        close(found, prefill_attend.reference(q, k, k, other, other, others, span, SCALE))
    assert torch.equal(latents, other)
    assert torch.equal(queries, others)


def test_prefill_stores_no_scores(device: torch.device) -> None:
    chunk, groups, width, staged = 1024, 16, 576, 32768
    latents = torch.zeros(1, staged, width, device=device, dtype=torch.bfloat16)
    window = torch.zeros(1, 1, groups, 64, width, device=device, dtype=torch.bfloat16)
    q = torch.randn(chunk, 1, groups, width, device=device).bfloat16()
    k = torch.randn(chunk, 1, width, device=device).bfloat16()
    segments = prefill_attend.table([prefill_attend.Segment(0, chunk, 0, 0, staged - chunk, staged)])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    prefill_attend_latent(q, k, latents, window, segments, SCALE)
    assert torch.cuda.max_memory_allocated() - before < 4 * q.nbytes
