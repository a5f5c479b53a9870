"""The Triton kernels of attention over encoded latents, compiled for each GPU generation; no device needed."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels.gpu.encoded_latent_split import encoded_latent_split
from ringkv.kernels.gpu.encoded_latents import decode_attend, encoded_tile, usual_tiling
from ringkv.kernels.gpu.latent_forms import LATENT_FORMS
from ringkv.kernels.gpu.merge_latents import merge_latents
from ringkv.kernels.gpu.rotate_queries import rotate_queries
from ringkv.kernels.gpu.write_latent import write_latent
from tests.kernels.compiled import SHARED_BYTES, absent_device, latent_inputs, stack_bytes

pytestmark = pytest.mark.usefixtures("own_cache")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WIDTH, SCALE = 576, 0.1
SPILLED = 544  # bytes, of 64 queries: mostly addresses of queries, which a tile's products read again
NAMES = ["write_latent", "rotate_queries", "encoded_latent_split", "merge_latents"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "name", "dtype", "groups", "width"),
    [
        *((80, "int8", BF16, 128, WIDTH), (80, "int4", FP16, 16, WIDTH)),
        *((90, "int8", BF16, 128, WIDTH), (90, "fp8", BF16, 16, WIDTH), (90, "int4", FP32, 20, 160)),
        *((100, "fp8", FP16, 20, 96), (100, "int4", BF16, 128, WIDTH)),
    ],
)
def test_all_kernels_compile_use_the_predicted_memory_and_spill_next_to_nothing(
    capability: int, name: PlaneFormat, dtype: torch.dtype, groups: int, width: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        q, k, planes, *rows = latent_inputs(name, dtype, groups, width)
        out, lse = decode_attend(LATENT_FORMS[name], q, k, planes, *rows, SCALE)
        assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
        assert [launched for launched, _ in absent.launches] == NAMES
        (made,), (written,) = absent.made(encoded_latent_split), absent.made(write_latent)
        predicted = usual_tiling(q, planes).shared_bytes(encoded_tile(q, planes))
        assert 0.7 * predicted <= made.metadata.shared <= min(1.2 * predicted, SHARED_BYTES[capability])
        assert "cp.async" in made.asm["ptx"]
        assert dtype == FP32 or any(one in made.asm["ptx"] for one in ("mma.sync", "wgmma.mma_async", "tcgen05.mma"))
        if capability < 100:  # Triton's cuobjdump is older
            kernels = (write_latent, rotate_queries, merge_latents)
            assert {stack_bytes(one, tmp_path) for kernel in kernels for one in absent.made(kernel)} == {0}
            assert stack_bytes(made, tmp_path) <= (SPILLED if encoded_tile(q, planes).rows == 64 else 0)
        assert "div.rn.f32" in written.asm["ptx"]
        assert "fma" not in written.asm["ptx"]  # torch rounds a product before it adds


@pytest.mark.parametrize("name", LATENT_FORMS)
def test_the_operators_have_them_on_cuda(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ringkv::decode_attend_latent_{name}", "CUDA")


def test_one_compilation_serves_every_number_of_splits_and_addresses_results_with_64_bits() -> None:
    with absent_device(90) as absent:
        q, k, planes, *rows = latent_inputs("int8", BF16, 4, 96)
        usual = usual_tiling(q, planes)
        for splits in (1, 2, 16, 37):
            decode_attend(LATENT_FORMS["int8"], q, k, planes, *rows, SCALE, replace(usual, splits=splits))
        for kernel in (encoded_latent_split, merge_latents):
            (made,) = absent.made(kernel)
            offsets = re.findall(r"tt\.addptr .*!tt\.ptr<f32>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
            assert offsets.count("i64") >= 2
        assert {grid[0] for name, grid in absent.launches if name == "encoded_latent_split"} == {1, 2, 16, 37}
