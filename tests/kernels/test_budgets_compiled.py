"""The Triton kernels of heads of different lengths and of pages, compiled for each GPU generation; no device needed."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.gpu.complete_page import complete_page
from ringkv.kernels.gpu.decode_attend import tile
from ringkv.kernels.gpu.decode_attend import usual_tiling as pages_tiling
from ringkv.kernels.gpu.heads_attend import SPREAD, decode_attend_heads
from ringkv.kernels.gpu.heads_attend import usual_tiling as heads_tiling
from ringkv.kernels.gpu.heads_split import heads_split
from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.pages_attend import decode_attend_pages
from ringkv.kernels.gpu.pages_split import pages_split
from ringkv.kernels.gpu.score_pages import score_pages
from ringkv.kernels.gpu.select_pages import select_pages
from tests.kernels.compiled import absent_device, heads_inputs, pages_inputs, stack_bytes

pytestmark = pytest.mark.usefixtures("own_cache")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SCALE = 0.1
SHAPES = [(80, BF16, 128, 8), (90, BF16, 128, 4), (90, FP32, 64, 7), (100, FP16, 80, 20)]


@pytest.mark.parametrize(("capability", "dtype", "width", "groups"), SHAPES)
def test_heads_of_different_lengths_compile_use_the_predicted_memory_and_spill_nothing(
    capability: int, dtype: torch.dtype, width: int, groups: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        tensors = heads_inputs(dtype, groups, width)
        out, lse = decode_attend_heads(*tensors, SCALE)
        assert (out.shape, lse.shape) == (tensors[0].shape, tensors[0].shape[:3])
        assert [name for name, _ in absent.launches] == ["heads_split", "merge_splits"]
        usual = heads_tiling(tensors[0], tensors[3])
        assert absent.launches[0][1][0] == SPREAD * usual.splits
        (made,) = absent.made(heads_split)
        predicted = usual.shared_bytes(tile(tensors[0]))
        assert 0.7 * predicted <= made.metadata.shared <= predicted
        assert "cp.async" in made.asm["ptx"]
        if capability < 100:  # Triton's cuobjdump is older
            assert stack_bytes(made, tmp_path) == 0


@pytest.mark.parametrize(("capability", "dtype", "width", "groups"), SHAPES)
def test_pages_compile_use_the_predicted_memory_and_spill_nothing(
    capability: int, dtype: torch.dtype, width: int, groups: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        tensors = pages_inputs(dtype, groups, width)
        out, lse = decode_attend_pages(*tensors, SCALE)
        assert (out.shape, lse.shape) == (tensors[0].shape, tensors[0].shape[:3])
        kernels = complete_page, score_pages, select_pages, pages_split, merge_splits
        assert [name for name, _ in absent.launches] == [kernel.fn.__name__ for kernel in kernels]
        (made,) = absent.made(pages_split)
        predicted = pages_tiling(tensors[0], tensors[3]).shared_bytes(tile(tensors[0]))
        assert 0.7 * predicted <= made.metadata.shared <= 1.1 * predicted  # numbers of pages are loaded ahead, too
        assert "cp.async" in made.asm["ptx"]
        if capability < 100:  # Triton's cuobjdump is older
            assert {stack_bytes(one, tmp_path) for kernel in kernels for one in absent.made(kernel)} == {0}


def test_one_compilation_serves_every_number_of_splits() -> None:
    with absent_device(90) as absent:
        heads, pages = heads_inputs(BF16, 4, 64), pages_inputs(BF16, 4, 64)
        usual = pages_tiling(pages[0], pages[3])
        for splits in (1, 2, 16, 37):
            decode_attend_heads(*heads, SCALE, replace(usual, splits=splits))
            decode_attend_pages(*pages, SCALE, cut=replace(usual, splits=splits))
        assert [len(absent.made(kernel)) for kernel in (heads_split, pages_split)] == [1, 1]


def test_without_a_new_token_nothing_is_written() -> None:
    with absent_device(90) as absent:
        heads, pages = heads_inputs(BF16, 4, 64), pages_inputs(BF16, 4, 64)
        for inputs, attend in ((heads, decode_attend_heads), (pages, decode_attend_pages)):
            attend(inputs[0], None, None, *inputs[3:], SCALE)
        assert "complete_page" not in [name for name, _ in absent.launches]
        for kernel in (heads_split, pages_split):
            (made,) = absent.made(kernel)
            assert not re.search(r"tt\.store .*!tt\.ptr<bf16>", made.asm["ttir"])


@pytest.mark.parametrize(("capacity", "page"), [(64, 16), (32768, 32), (1 << 18, 16)])
def test_pages_of_short_and_of_very_long_slots_are_selected_in_registers(
    capacity: int, page: int, tmp_path: Path
) -> None:
    with absent_device(90) as absent:
        decode_attend_pages(*pages_inputs(BF16, 4, 128, page, heads=8, capacity=capacity), SCALE)
        assert {stack_bytes(made, tmp_path) for made in absent.made(select_pages)} == {0}


def test_results_are_addressed_with_64_bits() -> None:
    with absent_device(90) as absent:
        decode_attend_heads(*heads_inputs(BF16, 4, 64), SCALE)
        decode_attend_pages(*pages_inputs(BF16, 4, 64), SCALE)
        for kernel in (heads_split, pages_split, merge_splits):
            for made in absent.made(kernel):
                offsets = re.findall(r"tt\.addptr .*!tt\.ptr<f32>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
                assert offsets.count("i64") >= 2
