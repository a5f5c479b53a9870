"""The Triton kernels of attention over latents in Triton's interpreter on the CPU, against the torch references.

The interpreter cannot multiply bfloat16, so the kernels multiply float32 copies there.
"""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels import decode_attend, prefill_attend
from tests.kernels.interpreted import SCALE, Cut, Result, decode_latent, prefill_latent

TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
Inputs = list[Tensor]


def some(
    live: list[int], dtype: torch.dtype = torch.float32, groups: int = 16, width: int = 96, capacity: int = 100
) -> Inputs:
    """Return q, k, latents, slot, entry, live: a row for each live length, and one more slot, which is unused."""
    torch.manual_seed(groups * width)
    rows = len(live)
    shapes = [(rows, 1, groups, width), (rows, 1, width), (rows + 1, 1, capacity, width)]
    entry = [max(0, n - 1) if row % 2 else n // 3 for row, n in enumerate(live)]
    slot = [*range(rows, 1, -1), 0][:rows]
    indices = [torch.tensor(t, dtype=torch.int32) for t in (slot, entry, live)]
    return [*((torch.randn(shape) / 2).to(dtype) for shape in shapes), *indices]


def close(found: Result, wanted: Result) -> None:
    """Compare out and lse."""
    off = TOLERANCE[found[0].dtype]
    torch.testing.assert_close(found[0].float(), wanted[0].float(), atol=off, rtol=off)
    torch.testing.assert_close(found[1], wanted[1], atol=4e-6, rtol=4e-6)


@pytest.mark.parametrize(
    ("dtype", "groups", "width", "cut"),
    [
        (torch.float32, 16, 96, (3, 16)),
        (torch.float32, 20, 576, (2, 32)),  # two programs share the queries' entries
        (torch.float32, 3, 100, (1, 64)),  # the rest is no power of two
        (torch.float32, 16, 64, None),  # the usual tiling
        (torch.float16, 16, 72, (7, 16)),
        (torch.bfloat16, 40, 320, (2, 32)),
    ],
)
def test_a_step_equals_the_reference(
    pool: ProcessPoolExecutor, dtype: torch.dtype, groups: int, width: int, cut: Cut
) -> None:
    inputs = some([100, 0, 33, 1], dtype, groups, width)
    q, k, latents, *indices = (t.clone() for t in inputs)
    found, after = pool.submit(decode_latent, inputs, cut).result()
    close(found, decode_attend.reference(q, k, k, latents, latents, *indices, SCALE))
    assert torch.equal(after, latents)
    assert not found[0][1].any()
    assert (found[1][1] == float("-inf")).all()


def test_the_content_of_entries_that_are_not_live_is_ignored(pool: ProcessPoolExecutor) -> None:
    inputs = some([0, 1, 40, 99])
    want, _ = pool.submit(decode_latent, [t.clone() for t in inputs], (3, 32)).result()
    _, _, latents, slots, entry, live = inputs
    latents[1] = float("nan")
    for slot, at, n in zip(slots.tolist(), entry.tolist(), live.tolist(), strict=True):
        latents[slot, :, n:] = float("nan")
        latents[slot, :, at] = float("inf")  # about to be overwritten
    found, _ = pool.submit(decode_latent, inputs, (3, 32)).result()
    assert torch.equal(found[0], want[0])
    assert torch.equal(found[1], want[1])


def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(pool: ProcessPoolExecutor) -> None:
    results = []
    for live in ([100, 77, 1], [3, 77, 0]):
        inputs = some([100, 77, 100])
        inputs[-1][:] = torch.tensor(live)
        inputs[-2][:] = 0
        results.append(pool.submit(decode_latent, inputs, (3, 32)).result()[0][0][1])
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("dtype", "tokens", "start", "groups", "width"),
    [
        (torch.float32, 1, 0, 16, 96),
        (torch.float32, 40, 0, 3, 100),
        (torch.float32, 9, 33, 20, 576),
        (torch.float16, 17, 64, 16, 72),
        (torch.bfloat16, 30, 50, 6, 320),
    ],
)
def test_a_chunk_of_a_prompt_attends_as_in_the_reference(
    pool: ProcessPoolExecutor, dtype: torch.dtype, tokens: int, start: int, groups: int, width: int
) -> None:
    torch.manual_seed(tokens)
    q, latents = torch.randn(tokens, 1, groups, width) / 2, torch.randn(1, start + tokens, width) / 2
    q, latents = q.to(dtype), latents.to(dtype)
    found = pool.submit(prefill_latent, q, latents[0], start).result()
    segments = prefill_attend.table([prefill_attend.Segment(0, tokens, 0, 0, start, start + tokens)])
    window = torch.zeros(1, 1, groups, 8, width, dtype=dtype)
    close(found, prefill_attend.reference(q, None, None, latents, latents, window, segments, SCALE))
