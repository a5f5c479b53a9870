"""Pages that are recalled from the host: the reference against `decode_attend_pages`, and places kept in lists."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ringkv.kernels import decode_attend_pages, decode_attend_recall
from tests.kernels.interpreted import SCALE
from tests.kernels.recall import Slots, random_steps


def recall(inputs: list[Any]) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    return decode_attend_recall.reference(*inputs, SCALE), inputs[3:]


def whole(inputs: list[Any]) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    return decode_attend_pages.reference(*inputs, SCALE), inputs[3:]


def prefetch(inputs: list[Any]) -> list[Tensor]:
    decode_attend_recall.prefetch_reference(*inputs, SCALE)
    return inputs[1:]


@pytest.mark.parametrize(("places", "most"), [(6, 6), (9, 5)])
def test_hundreds_of_random_steps_have_the_bits_of_slots_with_all_pages(places: int, most: int) -> None:
    slots = Slots.new(14, places, 32, torch.float32)
    for rows, running in random_steps(slots, 300, most, places):
        slots.step(rows, running, recall, whole, prefetch)
    assert slots.recalls > 300
    assert slots.hits > 100
