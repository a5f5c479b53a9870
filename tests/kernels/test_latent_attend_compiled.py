"""The Triton kernels of attention over latents, compiled for each GPU generation by Triton's own compiler."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)


from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels.gpu.decode_attend import decode_attend
from ringkv.kernels.gpu.latent_attend import latent_prefill, latent_split, prefill_latent, tile, usual_tiling
from ringkv.kernels.gpu.rotate_queries import rotate_queries
from ringkv.kernels.gpu.splits import merge_splits
from ringkv.kernels.gpu.step import Step
from ringkv.kernels.gpu.write_token import write_latent
from tests.kernels.compiled import SHARED_BYTES, absent_device, latent_step, stack_bytes

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.slow]  # compiles kernels for GPUs
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WIDTH, SCALE = 576, 0.1
PRODUCT = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}  # of many rows
SPILLED = 544  # bytes, of 64 queries: mostly addresses of queries, which a tile's products read again


def of_step(inputs: tuple[Any, ...]) -> Step:
    return Step.of(*inputs, SCALE)


def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="cuda")


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
        inputs = latent_step("plain", dtype, groups, WIDTH)
        out, lse = decode_attend(*inputs, SCALE)
        assert (out.shape, lse.shape) == (inputs[0].shape, inputs[0].shape[:3])
        assert [name for name, _ in absent.launches] == ["latent_split", "merge_splits"]
        (made,), (merge,) = absent.made(latent_split), absent.made(merge_splits)
        predicted = usual_tiling(of_step(inputs)).shared_bytes(tile(of_step(inputs)))
        assert 0.7 * predicted <= made.metadata.shared <= predicted
        assert [stack_bytes(one, tmp_path) for one in (made, merge)] == [spilled, 0]
        assert "cp.async.cg.shared.global" in made.asm["ptx"]
        assert dtype == FP32 or any(name in made.asm["ptx"] for name in ("mma.sync", "wgmma.mma_async"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "encoding", "dtype", "groups", "width"),
    [
        *((80, "int8", BF16, 128, WIDTH), (80, "int4", FP16, 16, WIDTH)),
        *((90, "int8", BF16, 128, WIDTH), (90, "int8", BF16, 16, WIDTH), (90, "int4", FP32, 20, 160)),
        *((100, "int8", FP16, 20, 96), (100, "int4", BF16, 128, WIDTH)),
    ],
)
def test_all_kernels_of_encoded_latents_compile_use_the_predicted_memory_and_spill_next_to_nothing(
    capability: int, encoding: PlaneFormat, dtype: torch.dtype, groups: int, width: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        inputs = latent_step(encoding, dtype, groups, width)
        out, lse = decode_attend(*inputs, SCALE)
        assert (out.shape, lse.shape) == (inputs[0].shape, inputs[0].shape[:3])
        names = ["write_latent", "rotate_queries", "latent_split", "merge_splits"]
        assert [launched for launched, _ in absent.launches] == names
        (made,), (written,) = absent.made(latent_split), absent.made(write_latent)
        padded = tile(of_step(inputs))
        predicted = usual_tiling(of_step(inputs)).shared_bytes(padded)
        assert 0.7 * predicted <= made.metadata.shared <= min(1.2 * predicted, SHARED_BYTES[capability])
        assert "cp.async" in made.asm["ptx"]
        assert dtype == FP32 or any(one in made.asm["ptx"] for one in ("mma.sync", "wgmma.mma_async", "tcgen05.mma"))
        if capability < 100:  # Triton's cuobjdump is older
            kernels = (write_latent, rotate_queries, merge_splits)
            assert {stack_bytes(one, tmp_path) for kernel in kernels for one in absent.made(kernel)} == {0}
            assert stack_bytes(made, tmp_path) <= (SPILLED if padded.rows == 64 else 0)
        assert "div.rn.f32" in written.asm["ptx"]
        assert "fma" not in written.asm["ptx"]  # torch rounds a product before it adds


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
            decode_attend(*latent_step("plain", BF16, 16, WIDTH, rows, capacity), SCALE)
        assert [len(absent.made(kernel)) for kernel in (latent_split, merge_splits)] == [1, 1]


@pytest.mark.parametrize("encoding", ["plain", "int8"])
def test_slots_and_partial_results_are_addressed_with_64_bits(encoding: PlaneFormat) -> None:
    with absent_device(90) as absent:
        inputs = latent_step(encoding, BF16, 16, 96)
        cut = usual_tiling(of_step(inputs)) if encoding == "int8" else None
        for splits in (1, 2, 16, 37) if cut else (1,):
            decode_attend(*inputs, SCALE, cut and replace(cut, splits=splits))
        (made,), (merged,) = absent.made(latent_split), absent.made(merge_splits)
        for kernel, kind, least in (
            (made, "bf16" if encoding == "plain" else "i16", 1),
            (made, "f32", 2),
            (merged, "f32", 2),
        ):
            offsets = re.findall(rf"tt\.addptr .*!tt\.ptr<{kind}>>?, (?:tensor<[\dx]*)?(i\d+)", kernel.asm["ttir"])
            assert offsets.count("i64") >= least
