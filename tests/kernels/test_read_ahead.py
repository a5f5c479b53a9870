"""Planes in files: what steps count as missing from memory, against what the system says that it holds."""

import mmap
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.page_out import in_memory, page_out
from ringkv.base.kv import SINKS
from ringkv.cache.tier import on_disk
from ringkv.kernels import decode_attend_pages as plain
from ringkv.kernels.decode_attend_pages_int8 import decode_attend_pages_int8
from ringkv.kernels.prefetch_pages import prefetch_pages
from ringkv.kernels.read_ahead import read_ahead

LAYERS, SLOTS, HEADS, ENTRIES, WIDTH, LIVE = 2, 2, 3, 1024, 64, 1000
SCALE = WIDTH**-0.5
SLOT, ENTRY, LIVES = (torch.tensor(one).int() for one in ([1, 0], [LIVE - 1, LIVE - 8], [LIVE, LIVE - 7]))

pytestmark = pytest.mark.usefixtures("compiled")


def plain_planes(folder: Path) -> list[Tensor]:
    allocate = on_disk(folder, torch.empty(0, dtype=torch.bfloat16))
    return [allocate((LAYERS, SLOTS, HEADS, ENTRIES, WIDTH)) for _ in range(2)]


def int8_planes(folder: Path) -> list[Tensor]:
    """Return keys, their scales, values and their scales."""
    allocate = on_disk(folder, torch.empty(0))
    shape = LAYERS, SLOTS, HEADS, ENTRIES
    return [one for _ in range(2) for one in (allocate((*shape, WIDTH), torch.int8), allocate(shape, torch.float32))]


class Step:
    """A step of two rows in slots 1 and 0, whose digests are random."""

    def __init__(self, page: int) -> None:
        self.page, pages = page, ENTRIES // page
        self.q, self.k, self.v = (torch.randn(SLOTS, HEADS, *more, WIDTH).bfloat16() for more in ([4], [], []))
        self.digests = torch.randn(SLOTS, HEADS, pages, 2, WIDTH).bfloat16()
        self.pins = torch.full((SLOTS, HEADS, pages), float("-inf"))
        self.counts = torch.tensor([[8, 1, 2, 1, 0], [12, 1, 3, 1, 0]]).int()

    def run(self, planes: list[Tensor]) -> Tensor:
        """Attend to a layer's planes."""
        read = self.digests, self.pins, self.counts, SLOT, ENTRY, LIVES, SCALE
        if len(planes) == 2:
            return plain.decode_attend_pages(self.q, self.k, self.v, *planes, *read).out
        centers = torch.zeros(SLOTS, HEADS, (1 + SINKS) * WIDTH)
        return decode_attend_pages_int8(self.q, self.k, self.v, *planes, centers, *read).out

    def selected(self) -> Tensor:
        """Return bool [S, H, P] of slots: the pages that they read, by the reference."""
        rows = SLOT.long()
        scores = plain.scores(self.q, self.digests[rows]) * SCALE
        return plain.selected(scores, self.pins[rows], self.counts[rows], LIVES, self.page)[rows.argsort()]

    def prefetched(self, planes: list[Tensor], q: Tensor) -> Tensor:
        """Prefetch for other queries; returns what they select."""
        selected = prefetch_pages(q, planes, self.digests, self.pins, self.counts, SLOT, LIVES, SCALE)
        other = Step(self.page)
        other.q, other.digests = q, self.digests
        found = other.selected()
        assert torch.equal(selected[SLOT.long().argsort()], found.sum(-1).int())
        return found

    def whole(self, plane: Tensor) -> Tensor:
        """Return bool [S, H, P]: the pages of a layer's plane that are in memory whole, by what the system says."""
        size = self.page * plane[0, 0, 0].numel() * plane.element_size()
        pages = ENTRIES // self.page
        held = in_memory(plane).view(SLOTS, HEADS, -1)
        touched = [range(i * size // mmap.PAGESIZE, ((i + 1) * size - 1) // mmap.PAGESIZE + 1) for i in range(pages)]
        return torch.stack([held[..., list(one)].all(-1) for one in touched], -1)

    def held(self, planes: list[Tensor]) -> Tensor:
        """Return bool [S, H, P]: the pages that are in memory whole in all planes."""
        return torch.stack([self.whole(one) for one in planes]).all(0)


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
    recalled = read_ahead(planes)
    drop(planes[len(planes) // 2 if has_keys else 0 :])
    layer = [one[1] for one in planes]
    missing = (step.selected() & ~step.held(layer)).sum(-1)
    step.run(layer)
    assert recalled is not None
    assert not recalled[0].any()
    assert not recalled[..., 1:].any()
    assert torch.equal(recalled[1, ..., 0], missing.int())
    assert missing.sum() > step.selected().sum() // 2
    step.run(layer)
    assert torch.equal(recalled[1, ..., 0], missing.int())


@pytest.mark.parametrize("page", [16, 32])
@pytest.mark.parametrize("make", [plain_planes, int8_planes])
def test_prefetched_pages_that_the_step_reads_are_hits_and_no_others_are_recalled(  # type: ignore[no-untyped-def]
    tmp_path: Path, make, page: int
) -> None:
    planes, step = make(tmp_path), Step(page)
    fetched = read_ahead(planes)
    drop(planes)
    layer = [one[1] for one in planes]
    missing = ~step.held(layer)
    predicted = step.prefetched(layer, step.q + torch.randn_like(step.q)) & missing
    deadline = time.monotonic() + 10
    while (predicted & ~step.held(layer)).any() and time.monotonic() < deadline:  # until the system has read them
        time.sleep(0.01)
    held, selected = step.held(layer), step.selected()
    step.run(layer)
    want = torch.stack(((selected & ~held).sum(-1), predicted.sum(-1), (selected & predicted).sum(-1)), -1)
    assert fetched is not None
    assert torch.equal(fetched[1], want.int())
    assert 0 < want[..., 2].sum() < want[..., 1].sum()
    assert want[..., 0].sum() > 0
    step.run(layer)
    assert torch.equal(fetched[1], want.int())


def test_prefetching_planes_in_memory_selects_and_fetches_nothing() -> None:
    step, planes = Step(32), [torch.randn(SLOTS, HEADS, ENTRIES, WIDTH).bfloat16() for _ in range(2)]
    assert step.prefetched(planes, step.q).any()


def test_a_step_over_files_has_the_bits_of_one_over_memory(tmp_path: Path) -> None:
    planes, step = [one.normal_() for one in plain_planes(tmp_path)], Step(32)
    want = step.run([one[1].clone() for one in planes])
    read_ahead(planes)
    drop(planes)
    assert torch.equal(step.run([one[1] for one in planes]), want)


def test_a_plane_that_is_gone_counts_no_more(tmp_path: Path) -> None:
    planes, step = plain_planes(tmp_path), Step(32)
    recalled, places = read_ahead(planes), {one.data_ptr() for one in planes}
    del planes
    others = plain_planes(tmp_path)
    if {one.data_ptr() for one in others}.isdisjoint(places):
        pytest.skip("the addresses are not used again")
    drop(others)
    step.run([one[1] for one in others])
    assert recalled is not None
    assert not recalled.any()
