"""Pages that are recalled from the host: the reference against slots with all pages, and places kept in lists."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels import decode_attend_reference
from ringkv.kernels.slots import Slots
from tests.kernels.entry_steps import Inputs
from tests.kernels.interpreted import SCALE
from tests.kernels.recall import Recalled, random_steps


def attend(inputs: Inputs) -> tuple[tuple[Tensor, Tensor], Slots]:
    return decode_attend_reference.decode_attend(*inputs, SCALE), inputs.slots


@pytest.mark.parametrize(("places", "most"), [(6, 6), (9, 5)])
def test_hundreds_of_random_steps_have_the_bits_of_slots_with_all_pages(places: int, most: int) -> None:
    slots = Recalled.new(14, places, 32, torch.float32)
    for rows, running in random_steps(slots, 300, most, places):
        slots.step(rows, running, attend, attend)
    assert slots.recalls > 300
