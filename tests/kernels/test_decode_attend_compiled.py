"""The Triton kernels of decode attention, compiled for each GPU generation by Triton's own compiler; no device needed.

They are launched by the operator's own code, so that they are specialised as they would be on a device.
"""

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
from ringkv.kernels.gpu import entries
from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.attend_words import attend_words
from ringkv.kernels.gpu.complete_page import complete_page
from ringkv.kernels.gpu.decode_attend import SPREAD, capacity_of, decode_attend
from ringkv.kernels.gpu.recall import MOVERS, move_pages, place_pages
from ringkv.kernels.gpu.rotate_queries import rotate_queries
from ringkv.kernels.gpu.select_pages import score_pages, select_pages
from ringkv.kernels.gpu.splits import merge_splits
from ringkv.kernels.gpu.step import Step
from ringkv.kernels.gpu.tiling import MOST_SPLITS, Tile, Tiling
from ringkv.kernels.gpu.write_token import write_token
from tests.kernels.compiled import HEADS, ROWS, SHARED_BYTES, absent_device, stack_bytes, step

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.slow]  # compiles kernels for GPUs
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SCALE = 0.1
UNSPILLED = 64  # elements of a vector; tiles of narrower ones have so many entries that they spill 72 to 104 bytes
BEFORE = {  # by readings: what is launched before a split is attended to, of plain entries
    "every": (),
    "ragged": (),
    "pages": (complete_page, score_pages, select_pages),
    "residents": (score_pages, select_pages, place_pages, move_pages, complete_page),
}


def usual(inputs: tuple[Any, ...]) -> tuple[Tiling, Tile]:
    """Return how a step is divided, and what a program loads."""
    of_step = Step.of(*inputs, SCALE)
    return entries.usual_tiling(of_step, capacity_of(of_step)), entries.padded_tile(of_step)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(
    ("encoding", "reading", "dtype", "width", "groups"),
    [
        *[("plain", "every", BF16, 32, 20), ("plain", "every", BF16, 256, 20)],
        *[("plain", "every", FP16, 128, 8), ("plain", "every", FP32, 64, 20), ("plain", "every", FP32, 256, 8)],
        *[("plain", "ragged", BF16, 128, 4), ("plain", "ragged", FP32, 64, 7), ("plain", "ragged", FP16, 80, 20)],
        ("plain", "pages", FP16, 80, 20),
        *[("plain", "residents", BF16, 128, 4), ("plain", "residents", FP32, 64, 7)],
        *[("int8", "every", BF16, 128, 8), ("int8", "ragged", FP16, 80, 3), ("int8", "pages", BF16, 64, 1)],
        *[("int4", "every", BF16, 128, 20), ("int4", "ragged", BF16, 64, 1), ("int4", "pages", FP16, 128, 8)],
        ("int4", "every", FP32, 96, 4),
    ],
)
def test_all_kernels_compile_use_the_predicted_memory_and_spill_nothing(
    capability: int, encoding: PlaneFormat, reading: str, dtype: torch.dtype, width: int, groups: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        inputs = step(encoding, reading, dtype, groups, width)
        out, lse = decode_attend(*inputs, SCALE)
        assert (out.shape, lse.shape) == (inputs[0].shape, inputs[0].shape[:3])
        first, attends = (
            ((), (attend_split,)) if encoding == "plain" else ((write_token,), (rotate_queries, attend_words))
        )
        kernels = *first, *BEFORE[reading], *attends, merge_splits
        assert [name for name, _ in absent.launches] == [kernel.fn.__name__ for kernel in kernels]
        (made,), (cut, padded) = absent.made(attends[-1]), usual(inputs)
        splits = dict(absent.launches)[attends[-1].fn.__name__][0]
        assert splits == cut.splits * (SPREAD.value if reading == "ragged" else 1)
        predicted = cut.shared_bytes(padded)
        most = 1.0 if (encoding, reading) in (("plain", "every"), ("plain", "ragged")) else 1.2
        assert 0.7 * predicted <= made.metadata.shared <= min(most * predicted, SHARED_BYTES[capability])
        assert "cp.async" in made.asm["ptx"]
        assert dtype == FP32 or "mma.sync" in made.asm["ptx"]
        if capability < 100 and width >= UNSPILLED:  # Triton's cuobjdump is older than compute capability 10
            assert {stack_bytes(one, tmp_path) for kernel in kernels for one in absent.made(kernel)} == {0}
        for written in absent.made(write_token):
            assert "div.rn.f32" in written.asm["ptx"]
            assert "fma" not in written.asm["ptx"]  # torch rounds a product before it adds


@pytest.mark.parametrize("width", [100, 192])
def test_plain_entries_compile_for_widths_that_are_not_powers_of_two(width: int) -> None:
    with absent_device(90) as absent:
        decode_attend(*step("plain", "every", BF16, 3, width), SCALE)
        assert len(absent.launches) == 2


@pytest.mark.parametrize("encoding", ["plain", "int8"])
@pytest.mark.parametrize("reading", ["every", "ragged", "pages"])
def test_one_compilation_serves_every_number_of_splits_and_addresses_results_with_64_bits(
    encoding: PlaneFormat, reading: str
) -> None:
    """A thousand slots of 8 heads, 256 splits and 8 x 128 queries have more than 2**31 elements of results."""
    split = attend_split if encoding == "plain" else attend_words
    with absent_device(90) as absent:
        inputs = step(encoding, reading, BF16, 4, 64)
        cut, _ = usual(inputs)
        for splits in (1, 2, 16, 37):
            decode_attend(*inputs, SCALE, replace(cut, splits=splits))
        for kernel in (split, merge_splits):
            (made,) = absent.made(kernel)
            offsets = re.findall(r"tt\.addptr .*!tt\.ptr<f32>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
            assert offsets.count("i64") >= 2


def test_one_compilation_serves_all_numbers_of_grouped_queries_that_are_padded_to_the_same() -> None:
    with absent_device(90) as absent:
        for groups, tiles in ((1, 1), (16, 1), (17, 2), (20, 2)):
            inputs = step("plain", "every", BF16, groups, 128, capacity=MOST_SPLITS * 64)
            decode_attend(*inputs, SCALE)
            assert len(absent.made(attend_split)) == tiles  # of 16 rows, and of 32
            assert len(absent.made(merge_splits)) == 1


def test_more_queries_than_one_program_processes_are_divided() -> None:
    with absent_device(90) as absent:
        decode_attend(*step("plain", "every", BF16, 160, 64), SCALE)
        (split, merged) = absent.launches
        assert split[1][1:] == (HEADS * 5, ROWS)  # 160 queries, 32 per program
        assert merged[1] == (160, HEADS, ROWS)


@pytest.mark.parametrize("encoding", ["plain", "int4"])
def test_a_cache_of_more_than_2_31_elements_a_slot_compiles(encoding: PlaneFormat) -> None:
    with absent_device(90) as absent:
        decode_attend(*step(encoding, "every", BF16, 4, 128, heads=32, capacity=1 << 20), SCALE)
        assert absent.launches


@pytest.mark.parametrize("reading", ["every", "ragged", "pages", "residents"])
def test_without_a_new_token_no_entry_is_written(reading: str) -> None:
    with absent_device(90) as absent:
        q, _, _, *others = step("plain", reading, BF16, 4, 64)
        decode_attend(q, None, None, *others, SCALE)
        assert "complete_page" not in [name for name, _ in absent.launches]
        (made,) = absent.made(attend_split)
        assert not re.search(r"tt\.store .*!tt\.ptr<bf16>", made.asm["ttir"])
        for moved in absent.made(move_pages):
            assert len(re.findall(r"tt\.store .*!tt\.ptr<bf16>", moved.asm["ttir"])) == 2  # on the device


def test_attention_to_residents_is_divided_as_if_all_pages_were_on_the_device() -> None:
    """So that it has the same bits."""
    with absent_device(90) as absent:
        for reading in ("pages", "residents"):
            inputs = step("plain", reading, BF16, 4, 128)
            decode_attend(*inputs, SCALE)
        grids = [grid for name, grid in absent.launches if name == "attend_split"]
        assert grids[0] == grids[1]
        assert dict(absent.launches)["move_pages"] == (MOVERS, HEADS, ROWS)
        (move,) = absent.made(move_pages)
        offsets = re.findall(r"tt\.addptr .*!tt\.ptr<bf16>>?, (?:tensor<[\dx]*)?(i\d+)", move.asm["ttir"])
        assert offsets.count("i64") >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "page", "places"), [(64, 16, 3), (32768, 32, 128), (1 << 18, 16, 1000)])
def test_pages_of_short_and_of_very_long_slots_are_selected_and_placed_in_registers(
    capacity: int, page: int, places: int, tmp_path: Path
) -> None:
    with absent_device(90) as absent:
        inputs = step("plain", "residents", BF16, 4, 128, heads=8, capacity=capacity, page=page, places=places)
        decode_attend(*inputs, SCALE)
        made = [one for kernel in (select_pages, place_pages) for one in absent.made(kernel)]
        assert [stack_bytes(one, tmp_path) for one in made] == [0, 0]
