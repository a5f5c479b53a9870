"""The Triton kernels that recall pages, compiled for each GPU generation; no device needed."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.gpu.complete_page import complete_page
from ringkv.kernels.gpu.decode_attend import tile, usual_tiling
from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.move_pages import move_pages
from ringkv.kernels.gpu.pages_attend import decode_attend_pages
from ringkv.kernels.gpu.pages_split import pages_split
from ringkv.kernels.gpu.place_pages import place_pages
from ringkv.kernels.gpu.recall_attend import MOVERS, decode_attend_recall, place, prefetch_recall
from ringkv.kernels.gpu.score_pages import score_pages
from ringkv.kernels.gpu.select_pages import select_pages
from tests.kernels.compiled import absent_device, pages_inputs, recall_inputs, stack_bytes
from tests.kernels.test_budgets_compiled import BF16, SCALE, SHAPES

pytestmark = pytest.mark.usefixtures("own_cache")
KERNELS = score_pages, select_pages, place_pages, move_pages, complete_page, pages_split, merge_splits


@pytest.mark.parametrize(("capability", "dtype", "width", "groups"), SHAPES)
def test_they_compile_and_spill_nothing(
    capability: int, dtype: torch.dtype, width: int, groups: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        tensors = recall_inputs(dtype, groups, width)
        out, lse = decode_attend_recall(*tensors, SCALE)
        assert (out.shape, lse.shape) == (tensors[0].shape, tensors[0].shape[:3])
        assert [name for name, _ in absent.launches] == [kernel.fn.__name__ for kernel in KERNELS]
        assert dict(absent.launches)["move_pages"] == (MOVERS, *tensors[1].shape[1::-1])
        if capability < 100:  # Triton's cuobjdump is older
            assert {stack_bytes(one, tmp_path) for kernel in KERNELS for one in absent.made(kernel)} == {0}


@pytest.mark.parametrize(("capability", "dtype", "width", "groups"), SHAPES)
def test_prefetching_compiles_and_spill_nothing(
    capability: int, dtype: torch.dtype, width: int, groups: int, tmp_path: Path
) -> None:
    with absent_device(capability) as absent:
        q, _, _, *others, slot, _, live = recall_inputs(dtype, groups, width)
        assert prefetch_recall(q, *others, slot, live, SCALE).shape == q.shape[:2]
        assert [name for name, _ in absent.launches] == [kernel.fn.__name__ for kernel in KERNELS[:4]]
        if capability < 100:  # Triton's cuobjdump is older
            assert {stack_bytes(one, tmp_path) for kernel in KERNELS[:4] for one in absent.made(kernel)} == {0}


def test_attention_is_cut_as_if_all_pages_were_on_the_device() -> None:
    """So that it has the same bits."""
    with absent_device(90) as absent:
        decode_attend_pages(*pages_inputs(BF16, 4, 128), SCALE)
        decode_attend_recall(*recall_inputs(BF16, 4, 128), SCALE)
        grids = [grid for name, grid in absent.launches if name == "pages_split"]
        assert grids[0] == grids[1]
        made = absent.made(pages_split)
        assert len(made) == 2
        tensors = recall_inputs(BF16, 4, 128)
        predicted = usual_tiling(tensors[0], tensors[3]).shared_bytes(tile(tensors[0]))
        assert all(0.7 * predicted <= one.metadata.shared <= 1.1 * predicted for one in made)


def test_without_a_new_token_nothing_is_written_to_the_host() -> None:
    with absent_device(90) as absent:
        q, _, _, *others = recall_inputs(BF16, 4, 64)
        decode_attend_recall(q, None, None, *others, SCALE)
        assert "complete_page" not in [name for name, _ in absent.launches]
        (made,) = absent.made(move_pages)
        assert len(re.findall(r"tt\.store .*!tt\.ptr<bf16>", made.asm["ttir"])) == 2  # keys and values on the device


@pytest.mark.parametrize(("capacity", "page", "places"), [(64, 16, 3), (32768, 32, 128), (1 << 18, 16, 1000)])
def test_places_of_few_and_of_many_pages_are_found_in_registers(
    capacity: int, page: int, places: int, tmp_path: Path
) -> None:
    with absent_device(90) as absent:
        q, *_, place_of, page_in, prefetched, fetched, slot, _, live = recall_inputs(
            BF16, 4, 128, page, capacity=capacity, places=places
        )
        pages = q.new_empty(*q.shape[:2], place_of.shape[2], dtype=torch.int32)
        for is_prefetch in (False, True):
            place(pages, live, pages.float(), slot, live, place_of, page_in, prefetched, fetched, page, is_prefetch)
        found = absent.made(place_pages)
        assert [stack_bytes(made, tmp_path) for made in found] == [0, 0]


def test_slots_beyond_32_bits_are_addressed() -> None:
    with absent_device(90) as absent:
        decode_attend_recall(*recall_inputs(BF16, 4, 64), SCALE)
        (made,) = absent.made(move_pages)
        offsets = re.findall(r"tt\.addptr .*!tt\.ptr<bf16>>?, (?:tensor<[\dx]*)?(i\d+)", made.asm["ttir"])
        assert offsets.count("i64") >= 4
