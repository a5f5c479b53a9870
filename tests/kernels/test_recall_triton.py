"""The Triton kernels that recall pages, in Triton's interpreter, against those that read all pages in place."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from ringkv.kernels.slots import Slots, flat
from tests.kernels.entry_steps import Inputs
from tests.kernels.interpreted import decode_attend
from tests.kernels.recall import Recalled, random_steps

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)


def attend(pool: ProcessPoolExecutor, inputs: Inputs) -> tuple[tuple[Tensor, Tensor], Slots]:
    found: tuple[tuple[Tensor, Tensor], Slots] = pool.submit(decode_attend, tuple(inputs), (2, 16)).result()
    return found


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize(("dtype", "width", "places", "most"), [(torch.float32, 48, 6, 6), (torch.float16, 32, 9, 5)])
def test_random_steps_have_the_bits_of_kernels_that_read_all_pages_in_place(
    pool: ProcessPoolExecutor, dtype: torch.dtype, width: int, places: int, most: int
) -> None:
    slots = Recalled.new(12, places, width, dtype)
    for rows, running in random_steps(slots, 5, most, seed=places):
        slots.step(rows, running, partial(attend, pool), partial(attend, pool))
    assert slots.recalls > 10


def test_without_new_keys_pages_are_recalled_and_nothing_is_written(pool: ProcessPoolExecutor) -> None:
    """As if another layer had written the new token, but not recalled the pages that this one needs."""
    slots = Recalled.new(12, 6, 32, torch.float32)
    (rows, running), *_ = random_steps(slots, 1, 6, seed=1)
    inputs = slots.inputs(rows, running)
    (out, _), after = attend(pool, inputs)
    (again, _), later = attend(pool, inputs._replace(k=None, v=None, slots=after))
    torch.testing.assert_close(again, out, atol=2e-6, rtol=2e-6)
    for ours, theirs in zip(flat(later), flat(after), strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
