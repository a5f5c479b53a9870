"""The Triton kernels that recall pages, in Triton's interpreter, against those of `decode_attend_pages`."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels import interpreted
from tests.kernels.recall import Slots, random_steps

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

CUT = (2, 16)


def run(pool: ProcessPoolExecutor, name: str, inputs: list[Any]) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    found: tuple[tuple[Tensor, Tensor], list[Tensor]] = pool.submit(getattr(interpreted, name), inputs, CUT).result()
    return found


def prefetch(pool: ProcessPoolExecutor, inputs: list[Any]) -> list[Tensor]:
    return pool.submit(interpreted.recall_prefetch, inputs).result()


@pytest.mark.parametrize(("dtype", "width", "places", "most"), [(torch.float32, 48, 6, 6), (torch.float16, 32, 9, 5)])
def test_random_steps_have_the_bits_of_kernels_that_read_all_pages_in_place(
    pool: ProcessPoolExecutor, dtype: torch.dtype, width: int, places: int, most: int
) -> None:
    slots = Slots.new(12, places, width, dtype)
    recall, whole = (partial(run, pool, name) for name in ("recall_attend", "pages_attend"))
    for rows, running in random_steps(slots, 8, most, seed=places):
        slots.step(rows, running, recall, whole, partial(prefetch, pool))
    assert slots.recalls > 20
    assert slots.hits > 0


def test_without_new_keys_pages_are_recalled_and_nothing_is_written(pool: ProcessPoolExecutor) -> None:
    """As if another layer had written the new token, but not recalled the pages that this one needs."""
    slots = Slots.new(12, 6, 32, torch.float32)
    (rows, running), *_ = random_steps(slots, 1, 6, seed=1)
    q, k, v, *numbers = slots.tokens(rows, running)
    inputs = [q, k, v, *slots.host, *slots.residents, *numbers]
    (out, _), after = run(pool, "recall_attend", inputs)
    (again, _), later = run(pool, "recall_attend", [q, None, None, *after[:11], *numbers])
    torch.testing.assert_close(again, out, atol=2e-6, rtol=2e-6)
    for one, other in zip(later[:8], after[:8], strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
