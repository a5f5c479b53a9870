"""Planes in files: what steps count as missing from memory, against what the system says that it holds."""

import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.base.kv import SINKS
from ringkv.cache.tier import on_disk
from ringkv.kernels import pages
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.read_ahead import read_ahead
from ringkv.kernels.slots import Pages, Rows, Slots
from tests.kernels.page_out import in_memory, page_out

LAYERS, SLOTS, HEADS, ENTRIES, WIDTH, LIVE = 2, 2, 3, 1024, 64, 1000
SCALE = WIDTH**-0.5
ROWS = Rows(*(torch.tensor(column).int() for column in ([1, 0], [LIVE - 1, LIVE - 8], [LIVE, LIVE - 7])))

pytestmark = pytest.mark.usefixtures("compiled")


def plain_planes(folder: Path) -> list[Tensor]:
    allocate = on_disk(folder, torch.empty(0, dtype=torch.bfloat16))
    return [allocate((LAYERS, SLOTS, HEADS, ENTRIES, WIDTH)) for _ in range(2)]


def int8_planes(folder: Path) -> list[Tensor]:
    """Return keys, their scales, values and their scales."""
    allocate = on_disk(folder, torch.empty(0))
    shape = LAYERS, SLOTS, HEADS, ENTRIES
    return [part for _ in range(2) for part in (allocate((*shape, WIDTH), torch.int8), allocate(shape, torch.float32))]


class Step:
    """A step of two rows in slots 1 and 0, whose digests are random."""

    def __init__(self, page: int) -> None:
        self.page, shape = page, (SLOTS, HEADS, ENTRIES // page)
        self.q, self.k, self.v = (torch.randn(SLOTS, HEADS, *more, WIDTH).bfloat16() for more in ([4], [], []))
        counts = torch.tensor([[8, 1, 2], [12, 1, 3]]).int()
        digests = torch.randn(*shape, 2, WIDTH).bfloat16()
        self.reading = Pages(digests, torch.full(shape, float("-inf")), counts)

    def run(self, planes: list[Tensor]) -> Tensor:
        """Attend to a layer's planes."""
        slots = Slots("plain", tuple(planes), reading=self.reading)
        if len(planes) > 2:
            slots = slots._replace(encoding="int8", centers=torch.zeros(SLOTS, HEADS, (1 + SINKS) * WIDTH))
        return decode_attend(self.q, self.k, self.v, slots, ROWS, SCALE).out

    def selected(self) -> Tensor:
        """Return bool [S, H, P] of slots: the pages that they read, by the reference."""
        slot = ROWS.slot.long()
        scores = pages.scores(self.q, self.reading.digests[slot]) * SCALE
        return pages.selected(scores, self.reading, ROWS, self.page)[slot.argsort()]

    def in_memory(self, plane: Tensor) -> Tensor:
        """Return bool [S, H, P]: the pages of a layer's plane that are in memory whole, by what the system says."""
        size = self.page * plane[0, 0, 0].numel() * plane.element_size()
        held = in_memory(plane).view(SLOTS, HEADS, -1)
        places = range(ENTRIES // self.page)
        touched = [range(i * size // mmap.PAGESIZE, ((i + 1) * size - 1) // mmap.PAGESIZE + 1) for i in places]
        return torch.stack([held[..., list(page)].all(-1) for page in touched], -1)

    def held(self, planes: list[Tensor]) -> Tensor:
        """Return bool [S, H, P]: the pages that are in memory whole in all planes."""
        return torch.stack([self.in_memory(plane) for plane in planes]).all(0)


def drop(planes: list[Tensor]) -> None:
    try:
        for plane in planes:
            page_out(plane)
    except OSError as kept:
        pytest.skip(str(kept))  # a file in memory, without swap


@pytest.mark.parametrize("page", [16, 32])
@pytest.mark.parametrize("make", [plain_planes, int8_planes])
@pytest.mark.parametrize("has_keys", [False, True])
def test_selected_pages_that_are_not_in_memory_are_counted(tmp_path: Path, make, page: int, has_keys: bool) -> None:  # type: ignore[no-untyped-def]
    planes, step = make(tmp_path), Step(page)
    fetched = read_ahead(planes)
    drop(planes[len(planes) // 2 if has_keys else 0 :])
    layer = [plane[1] for plane in planes]
    missing = (step.selected() & ~step.held(layer)).sum(-1)
    step.run(layer)
    assert fetched is not None
    assert not fetched[0].any()
    assert torch.equal(fetched[1], missing.int())
    assert missing.sum() > step.selected().sum() // 2
    step.run(layer)
    assert torch.equal(fetched[1], missing.int())


def test_a_step_over_files_has_the_bits_of_one_over_memory(tmp_path: Path) -> None:
    planes, step = [plane.normal_() for plane in plain_planes(tmp_path)], Step(32)
    want = step.run([plane[1].clone() for plane in planes])
    read_ahead(planes)
    drop(planes)
    assert torch.equal(step.run([plane[1] for plane in planes]), want)


def test_a_plane_that_is_gone_counts_no_more(tmp_path: Path) -> None:
    planes, step = plain_planes(tmp_path), Step(32)
    fetched, places = read_ahead(planes), {plane.data_ptr() for plane in planes}
    del planes
    others = plain_planes(tmp_path)
    if {plane.data_ptr() for plane in others}.isdisjoint(places):
        pytest.skip("the addresses are not used again")
    drop(others)
    step.run([plane[1] for plane in others])
    assert fetched is not None
    assert not fetched.any()
