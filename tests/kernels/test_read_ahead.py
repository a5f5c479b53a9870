"""Planes in files: what steps count as read from the disk, against what the system says that it holds."""

import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.page_out import in_memory, page_out
from ringkv.cache.tier import on_disk
from ringkv.kernels import decode_attend_pages
from ringkv.kernels.decode_attend_pages import digest, reference
from ringkv.kernels.read_ahead import read_ahead

LAYERS, SLOTS, HEADS, ENTRIES, WIDTH, PAGE = 2, 2, 3, 1024, 64, 32
LIVE, COUNTS = 1000, [8, 1, 2, 1]
SCALE = WIDTH**-0.5

pytestmark = pytest.mark.usefixtures("compiled")


def planes(folder: Path) -> tuple[Tensor, Tensor]:
    allocate = on_disk(folder, torch.empty(0, dtype=torch.bfloat16))
    made = [allocate((LAYERS, SLOTS, HEADS, ENTRIES, WIDTH)) for _ in range(2)]
    return made[0].normal_(), made[1].normal_()


def step(keys: Tensor, values: Tensor) -> list[Tensor]:
    """Return the arguments of a step that writes the last of `LIVE` entries."""
    digests = digest(keys.unflatten(2, (-1, PAGE)), True)
    q, k, v = (torch.randn(SLOTS, HEADS, *more, WIDTH).bfloat16() for more in ([4], [], []))
    pins = torch.full((SLOTS, HEADS, ENTRIES // PAGE), float("-inf"))
    slot, live = torch.arange(SLOTS).int(), torch.full((SLOTS,), LIVE).int()
    counts = torch.tensor([COUNTS] * SLOTS).int()
    return [q, k, v, keys, values, digests, pins, counts, slot, live - 1, live]


def selected(inputs: list[Tensor]) -> Tensor:
    """Return bool [S, H, P]: the pages that a step reads, by the reference."""
    q, _, _, _, _, digests, pins, counts, slot, _, live = inputs
    rows = slot.long()
    return decode_attend_pages.selected(
        decode_attend_pages.scores(q, digests[rows]) * SCALE, pins[rows], counts[rows], live, PAGE
    )


def whole_pages(plane: Tensor) -> Tensor:
    """Return bool [S, H, P]: the pages of a layer's plane that are in memory whole, by what the system says."""
    size = PAGE * WIDTH * plane.element_size()
    assert size % mmap.PAGESIZE == 0
    return in_memory(plane).view(SLOTS, HEADS, ENTRIES // PAGE, -1).all(-1)


def test_a_step_counts_the_selected_pages_that_were_not_in_memory_and_brings_them_there(tmp_path: Path) -> None:
    keys, values = planes(tmp_path)
    recalled = read_ahead(keys)
    read_ahead(values)
    inputs = step(keys[1], values[1])
    seen, (want, _) = selected(inputs), reference(*(one.clone() for one in inputs), SCALE)
    page_out(keys)
    missing = (seen & ~whole_pages(keys[1])).sum(-1)
    found, _ = decode_attend_pages.decode_attend_pages(*inputs, SCALE)
    assert torch.equal(recalled, torch.stack((torch.zeros_like(missing), missing)).int())
    assert missing.sum() > seen.sum() // 2
    assert not (seen & ~whole_pages(keys[1])).any()
    assert (found - want).abs().max() < 2e-2
    decode_attend_pages.decode_attend_pages(*inputs, SCALE)
    assert torch.equal(recalled[1], missing.int())


def test_memory_in_no_file_is_not_counted(tmp_path: Path) -> None:
    keys, values = planes(tmp_path)
    recalled = read_ahead(keys)
    decode_attend_pages.decode_attend_pages(*step(keys[0].clone(), values[0].clone()), SCALE)
    assert not recalled.any()
