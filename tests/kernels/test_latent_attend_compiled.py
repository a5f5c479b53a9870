"""The Triton kernels of attention over latents, compiled for each GPU generation by Triton's own compiler."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.gpu.latent_attend import decode_attend_latent, prefill_latent, tile, usual_tiling
from ringkv.kernels.gpu.latent_prefill import latent_prefill
from ringkv.kernels.gpu.latent_split import latent_split
from ringkv.kernels.gpu.merge_splits import merge_splits
from tests.kernels.compiled import absent_device, stack_bytes

pytestmark = pytest.mark.usefixtures("own_cache")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WIDTH, SCALE = 576, 0.1
PRODUCT = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}  # of many rows


def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="cuda")


def step(dtype: torch.dtype, groups: int, rows: int = 8, capacity: int = 8192) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch a step in `absent_device`; return its queries and latents."""
    q, k = empty(rows, 1, groups, WIDTH, dtype=dtype), empty(rows, 1, WIDTH, dtype=dtype)
    latents = empty(2 * rows, 1, capacity, WIDTH, dtype=dtype)
    out, lse = decode_attend_latent(q, k, latents, *(empty(rows, dtype=torch.int32) for _ in range(3)), SCALE)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
    return q, latents


@pytest.mark.parametrize(
    ("capability", "dtype", "groups", "spilled"),
    [
        *[(80, BF16, 128, 0), (90, BF16, 16, 0), (90, BF16, 20, 0), (90, FP32, 20, 0), (100, FP16, 20, 0)],
        (90, BF16, 128, 24),  # measured: 2.4 times as fast as tiles of 32 queries, which spill nothing
    ],
)
def test_a_step_compiles_within_the_shared_memory_that_its_tiling_predicts_and_spills_next_to_nothing(
    capability: int, dtype: torch.dtype, groups: int, spilled: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        q, latents = step(dtype, groups)
        assert [name for name, _ in absent.launches] == ["latent_split", "merge_splits"]
        (made,), (merge,) = absent.made(latent_split), absent.made(merge_splits)
        predicted = usual_tiling(q, latents).shared_bytes(tile(q))
        assert 0.7 * predicted <= made.metadata.shared <= predicted
        assert [stack_bytes(one, tmp_path) for one in (made, merge)] == [spilled, 0]
        assert "cp.async.cg.shared.global" in made.asm["ptx"]
        assert dtype == FP32 or any(name in made.asm["ptx"] for name in ("mma.sync", "wgmma.mma_async"))


@pytest.mark.parametrize(("capability", "dtype"), [(80, BF16), (90, BF16), (90, FP32), (100, FP16)])
def test_prefill_compiles_and_spills_next_to_nothing(capability: int, dtype: torch.dtype, tmp_path: Path) -> None:
    with absent_device(capability) as absent:
        for tokens, start in ((256, 0), (256, 1), (2048, 30000)):
            prefill_latent(
                empty(tokens, 1, 16, WIDTH, dtype=dtype), empty(start + tokens, WIDTH, dtype=dtype), start, SCALE
            )
        (made,) = absent.made(latent_prefill)  # one compilation serves all places in a prompt
        assert stack_bytes(made, tmp_path) <= (8 if capability == 100 else 0)
        assert "cp.async.cg.shared.global" in made.asm["ptx"]
        assert dtype == FP32 or PRODUCT[capability] in made.asm["ptx"]


def test_one_compilation_serves_every_number_of_slots_and_entries() -> None:
    with absent_device(90) as absent:
        for rows, capacity in ((1, 512), (2, 40000), (60, 1 << 20)):
            step(BF16, 16, rows, capacity)
        assert [len(absent.made(kernel)) for kernel in (latent_split, merge_splits)] == [1, 1]


def test_slots_and_partial_results_are_addressed_with_64_bits() -> None:
    with absent_device(90) as absent:
        step(BF16, 16)
        (made,) = absent.made(latent_split)
        for kind, least in (("bf16", 1), ("f32", 2)):  # a slot's latents; outputs and log-sum-exps
            offsets = re.findall(rf"tt\.addptr .*!tt\.ptr<{kind}>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
            assert offsets.count("i64") >= least
