"""Attention of prefill on the device against the torch reference."""

import pytest
import torch

from ringkv.kernels import prefill_attend
from ringkv.kernels.prefill_attend import Staged

pytestmark = pytest.mark.device

SCALE = 0.09
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def close(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    """Compare out and lse."""
    tolerance = TOLERANCE[found[0].dtype]
    torch.testing.assert_close(found[0].float(), wanted[0].float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-4, rtol=1e-4)


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
        found = prefill_attend.prefill_attend(q, k, v, Staged(*planes, queries, span), SCALE, sliding)
        want = prefill_attend.reference(q, k, v, Staged(*others, span), SCALE, sliding)
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
    prefill_attend.prefill_attend(q, k, k, Staged(*planes, window, segments), SCALE)
    scores = heads * groups * chunk * staged * 2
    assert torch.cuda.max_memory_allocated() - before < scores / 4
