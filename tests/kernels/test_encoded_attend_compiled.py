"""The Triton kernels of attention over encoded entries, compiled for each GPU generation; no device needed."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.gpu.encoded_attend import decode_attend, encoded_tile, usual_tiling
from ringkv.kernels.gpu.forms import FORMS
from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.rotate_queries import rotate_queries
from ringkv.kernels.gpu.write_token import write_token
from tests.kernels.compiled import absent_device, encoded_inputs, stack_bytes

pytestmark = pytest.mark.usefixtures("own_cache")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SCALE = 0.1
STACK = {"turbo4": 8}  # bytes, of a write that calls functions for quotients and roots in float64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "name", "dtype", "width", "groups", "exact"),
    [
        *((80, "int8", BF16, 128, 8, 0), (100, "fp8", FP16, 80, 3, 0)),
        *((80, "int4", BF16, 128, 20, 4), (90, "int4", FP32, 96, 4, 4), (100, "int4", BF16, 64, 1, 4)),
        *((80, "turbo4", BF16, 128, 8, 4), (90, "turbo4", FP32, 96, 4, 4), (100, "turbo4", FP16, 80, 3, 0)),
    ],
)
def test_all_kernels_compile_use_the_predicted_memory_and_spill_nothing(
    capability: int, name: str, dtype: torch.dtype, width: int, groups: int, exact: int, tmp_path: Path
) -> None:
    form = FORMS[name]
    with absent_device(capability) as absent:
        q, k, v, planes, *rows = encoded_inputs(name, dtype, groups, width, exact)
        out, lse = decode_attend(form, q, k, v, planes, *rows, SCALE)
        assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
        names = [launched for launched, _ in absent.launches]
        assert names == ["write_token", "rotate_queries", form.attend.fn.__name__, "merge_splits"]
        (made,) = absent.made(form.attend)
        usual = usual_tiling(form, q, planes)
        predicted = usual.shared_bytes(encoded_tile(form, q, planes))
        assert 0.7 * predicted <= made.metadata.shared <= 1.2 * predicted
        assert "cp.async" in made.asm["ptx"]
        assert ("mma.sync" in made.asm["ptx"]) == (dtype != FP32)
        if capability < 100:  # Triton's cuobjdump is older
            kernels = (rotate_queries, form.attend, merge_splits)
            assert {stack_bytes(one, tmp_path) for kernel in kernels for one in absent.made(kernel)} == {0}
            assert stack_bytes(absent.made(write_token)[0], tmp_path) <= STACK.get(name, 0)
        (written,) = absent.made(write_token)
        assert "div.rn.f32" in written.asm["ptx"]
        assert ("sqrt.rn.f64" in written.asm["ptx"]) == (name == "turbo4")
        assert "fma" not in written.asm["ptx"]  # torch rounds a product before it adds


def test_one_compilation_serves_every_number_of_splits_and_addresses_results_with_64_bits() -> None:
    form = FORMS["fp8"]
    with absent_device(90) as absent:
        q, k, v, planes, *rows = encoded_inputs("fp8", BF16, 4, 64, 0)
        usual = usual_tiling(form, q, planes)
        for splits in (1, 2, 16, 37):
            decode_attend(form, q, k, v, planes, *rows, SCALE, replace(usual, splits=splits))
        for kernel in (form.attend, merge_splits):
            (made,) = absent.made(kernel)
            offsets = re.findall(r"tt\.addptr .*!tt\.ptr<f32>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
            assert offsets.count("i64") >= 2
        assert {grid[0] for name, grid in absent.launches if name == "attend_bytes"} == {1, 2, 16, 37}
