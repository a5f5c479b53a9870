"""The Triton kernels of decode attention, compiled for each GPU generation by Triton's own compiler; no device needed.

They are launched by the operators' own code, so that they are specialised as they would be on a device.
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
from ringkv.kernels.gpu.cache_split import cache_split
from ringkv.kernels.gpu.decode_attend import cache_attend, decode_attend, tile, usual_tiling
from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.tiling import MOST_SPLITS
from tests.kernels.compiled import absent_device, cache_inputs, inputs, stack_bytes

pytestmark = pytest.mark.usefixtures("own_cache")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SCALE = 0.1


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(
    ("dtype", "width", "groups"),
    [
        *[(BF16, 32, 20), (BF16, 64, 4), (BF16, 128, 8), (BF16, 256, 20)],
        *[(FP16, 64, 20), (FP16, 128, 8), (FP32, 32, 4), (FP32, 64, 20), (FP32, 256, 8)],
    ],
)
def test_decode_attention_compiles_and_uses_the_shared_memory_that_its_tiling_predicts(
    capability: int, dtype: torch.dtype, width: int, groups: int
) -> None:
    with absent_device(capability) as absent:
        tensors = inputs(dtype, groups, width)
        out, lse = decode_attend(*tensors, SCALE)
        assert out.shape == tensors[0].shape
        assert lse.shape == tensors[0].shape[:3]
        assert [name for name, _ in absent.launches] == ["attend_split", "merge_splits"]
        (made,) = absent.made(attend_split)
        predicted = usual_tiling(tensors[0], tensors[3]).shared_bytes(tile(tensors[0]))
        assert 0.7 * predicted <= made.metadata.shared <= predicted


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(
    ("dtype", "fresh", "groups", "width"), [(BF16, 4, 8, 128), (BF16, 8, 20, 256), (FP16, 2, 4, 64), (FP32, 3, 1, 96)]
)
def test_attention_of_several_fresh_tokens_compiles(
    capability: int, dtype: torch.dtype, fresh: int, groups: int, width: int
) -> None:
    with absent_device(capability) as absent:
        tensors = cache_inputs(dtype, fresh, groups, width)
        out, lse = cache_attend(*tensors, SCALE)
        assert out.shape == tensors[0].shape
        assert lse.shape == tensors[0].shape[:3]
        assert [name for name, _ in absent.launches] == ["cache_split", "merge_splits"]
        (made,) = absent.made(cache_split)
        assert made.metadata.shared <= usual_tiling(tensors[0], tensors[1]).shared_bytes(tile(tensors[0]))


@pytest.mark.parametrize("width", [80, 96, 100, 192])
def test_both_kernels_compile_for_widths_that_are_not_powers_of_two(width: int) -> None:
    with absent_device(90) as absent:
        decode_attend(*inputs(BF16, 3, width), SCALE)
        assert len(absent.launches) == 2


def test_one_compilation_serves_every_number_of_splits_and_of_grouped_queries() -> None:
    with absent_device(90) as absent:
        for groups, tiles in ((1, 1), (16, 1), (17, 2), (20, 2)):
            tensors = inputs(BF16, groups, 128, capacity=MOST_SPLITS * 64)
            usual = usual_tiling(tensors[0], tensors[3])
            for splits in range(1, MOST_SPLITS + 1):
                decode_attend(*tensors, SCALE, replace(usual, splits=splits))
            assert len(absent.made(attend_split)) == tiles  # of 16 rows, and of 32
            assert len(absent.made(merge_splits)) == 1
        assert {grid[0] for name, grid in absent.launches if name == "attend_split"} == {*range(1, MOST_SPLITS + 1)}


def test_one_compilation_serves_every_number_of_splits_with_fresh_tokens() -> None:
    with absent_device(90) as absent:
        tensors = cache_inputs(BF16, 4, 4, 128)
        usual = usual_tiling(tensors[0], tensors[1])
        for splits in range(1, MOST_SPLITS + 1):
            cache_attend(*tensors, SCALE, replace(usual, splits=splits))
        assert len(absent.made(cache_split)) == 1


def test_more_queries_than_one_program_processes_are_divided() -> None:
    with absent_device(90) as absent:
        cache_attend(*cache_inputs(BF16, 8, 20, 64, rows=3, heads=2), SCALE)
        (split, merged) = absent.launches
        assert split[1][1:] == (2 * 5, 3)  # 160 queries, 32 per program
        assert merged[1] == (160, 2, 3)


def test_a_cache_of_more_than_2_31_elements_a_slot_compiles() -> None:
    with absent_device(90) as absent:
        decode_attend(*inputs(BF16, 4, 128, rows=2, heads=32, capacity=1 << 20), SCALE)
        assert len(absent.launches) == 2


@pytest.mark.parametrize("width", [64, 128, 256])
def test_it_uses_tensor_cores_and_asynchronous_loads_and_spills_nothing(width: int, tmp_path: Path) -> None:
    with absent_device(90) as absent:
        decode_attend(*inputs(BF16, 4, width, rows=10, heads=8, capacity=32768), SCALE)
        cache_attend(*cache_inputs(BF16, 4, 8, width, rows=10, heads=8, capacity=32768), SCALE)
        for kernel in (attend_split, cache_split):
            (made,) = absent.made(kernel)
            assert "mma.sync" in made.asm["ptx"]
            assert "cp.async" in made.asm["ptx"]
            assert stack_bytes(made, tmp_path) == 0
        assert {stack_bytes(made, tmp_path) for made in absent.made(merge_splits)} == {0}


def test_partial_results_are_addressed_with_64_bits() -> None:
    """A thousand slots of 8 heads, 256 splits and 8 x 128 queries have more than 2**31 of them."""
    with absent_device(90) as absent:
        decode_attend(*inputs(BF16, 8, 128), SCALE)
        cache_attend(*cache_inputs(BF16, 2, 4, 128), SCALE)
        for kernel in (attend_split, cache_split, merge_splits):
            (made,) = absent.made(kernel)
            offsets = re.findall(r"tt\.addptr .*!tt\.ptr<f32>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
            assert offsets.count("i64") >= 2  # outputs and log-sum-exps; offsets added later are small
