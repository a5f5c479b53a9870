"""The Triton kernels of decode attention, compiled for each GPU generation by Triton's own compiler; no device needed.

They are launched by the operator's own code, so that they are specialised as they would be on a device.
"""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.decode_attend import decode_attend, launch, tile, usual_tiling
from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.tiling import MOST_SPLITS
from tests.kernels.compiled import KERNELS, absent_device, inputs

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "groups"), [(32, 20), (64, 4), (128, 8), (256, 20)])
def test_both_kernels_compile_for_every_generation_and_take_the_shared_memory_that_their_tiling_reckons_with(
    capability: int, dtype: torch.dtype, width: int, groups: int
) -> None:
    with absent_device(capability) as absent:
        tensors = inputs(dtype, groups, width)
        assert decode_attend(*tensors).shape == tensors[0].shape
        assert [name for name, _ in absent.launches] == ["attend_split", "merge_splits"]
        (made,) = absent.made(attend_split)
        reckoned = usual_tiling(tensors[0], tensors[3]).shared_bytes(tile(tensors[0]))
        assert 0.7 * reckoned <= made.metadata.shared <= reckoned


@pytest.mark.parametrize("width", [80, 96, 100, 192])
def test_both_kernels_compile_for_widths_that_no_tile_has(width: int) -> None:
    with absent_device(90) as absent:
        decode_attend(*inputs(torch.bfloat16, 3, width))
        assert len(absent.launches) == 2


def test_one_compilation_serves_every_number_of_splits_and_of_grouped_queries() -> None:
    with absent_device(90) as absent:
        for groups, tiles in ((1, 1), (16, 1), (17, 2), (20, 2)):
            tensors = inputs(torch.bfloat16, groups, 128, capacity=MOST_SPLITS * 64)
            usual = usual_tiling(tensors[0], tensors[3])
            for splits in range(1, MOST_SPLITS + 1):
                launch(*tensors, replace(usual, splits=splits))
            assert len(absent.made(attend_split)) == tiles  # of 16 rows, and of 32
            assert len(absent.made(merge_splits)) == 1
        assert {grid[0] for name, grid in absent.launches if name == "attend_split"} == {*range(1, MOST_SPLITS + 1)}


def test_a_cache_of_more_than_2_31_elements_a_slot_compiles() -> None:
    with absent_device(90) as absent:
        decode_attend(*inputs(torch.bfloat16, 4, 128, slots=2, heads=32, capacity=1 << 20))
        assert len(absent.launches) == 2


@pytest.mark.parametrize("width", [64, 128, 256])
def test_it_uses_tensor_cores_and_asynchronous_loads_and_spills_nothing(width: int) -> None:
    with absent_device(90) as absent:
        decode_attend(*inputs(torch.bfloat16, 4, width, slots=10, heads=8, capacity=32768))
        (made,) = absent.made(attend_split)
        assert "mma.sync" in made.asm["ptx"]
        assert "cp.async" in made.asm["ptx"]
        assert all(".local" not in one.asm["ptx"] for kernel in KERNELS for one in absent.made(kernel))


def test_partial_results_are_addressed_with_64_bits() -> None:
    """A thousand slots of 8 heads, 256 splits and 8 x 128 queries have more than 2**31 of them."""
    with absent_device(90) as absent:
        decode_attend(*inputs(torch.bfloat16, 8, 128))
        for kernel in KERNELS:
            (made,) = absent.made(kernel)
            offsets = re.findall(r"tt\.addptr .*!tt\.ptr<f32>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
            assert offsets.count("i64") == 2  # of outputs, and of their log-sum-exps; what is added later is small
