# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Recall of the pages that a step reads from the host's pinned memory: kernels find places for them and move them.

The GPU reads and writes that memory as its own. Every new token is written to it at once. So a page on the device may
be overwritten at any time. A page that is not on the device takes an empty place, else that of the page with the
lowest share of those that the step does not read. So sinks and newest pages, which every step reads, stay.

B rows of a step, S slots, H key-value heads, P pages of a slot, R places for pages on the device, D elements of a
vector.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ringkv.kernels.gpu.readings import Selection
from ringkv.kernels.gpu.select_pages import highest, ordered, select
from ringkv.kernels.gpu.step import Step, new_rows, planes_of
from ringkv.kernels.gpu.tiles import vector_of
from ringkv.kernels.slots import Pages, Residents, Rows

MOVERS = 4  # programs that share the pages that one head recalls
PLACE_WARPS, MOVE_WARPS = 1, 4
FIRST = tl.constexpr((1 << 64) - 1)  # above all that `lowest_first` returns


class Moves(NamedTuple):
    """Which of the selected pages take which places, int32 [B, H, R] each, and how many, int32 [B, H].

    placed: int32 [B, H, P], the places of the selected pages; `move_pages` writes those of pages that move.
    """

    wanted: Tensor
    freed: Tensor
    counts: Tensor
    placed: Tensor


def recall(step: Step, reading: Pages, residents: Residents, page: int) -> Selection:
    """Copy pages that the step reads to places, and new tokens to the host. Return places instead of pages."""
    assert all(part.is_contiguous() for part in residents[2:])
    assert residents.keys.stride() == residents.values.stride()
    assert step.slots.planes[0].stride() == step.slots.planes[1].stride()
    selection = select(step, reading, page, with_shares=True)
    moves = place(selection, residents, step.rows, page)
    _move(step, residents, selection, moves, page)
    return selection._replace(pages=moves.placed)


def place(selection: Selection, residents: Residents, rows: Rows, page: int) -> Moves:
    """Find places for the selected pages. Other pages lose theirs in `place_of`, and `fetched` counts."""
    (batch, heads, pages), places = selection.pages.shape, residents.page_in.shape[2]
    wanted, freed = (selection.pages.new_empty(batch, heads, places) for _ in range(2))
    moves = Moves(wanted, freed, selection.pages.new_empty(batch, heads), torch.empty_like(selection.pages))
    padded = triton.next_power_of_2(places)
    place_pages[heads, batch](
        selection,
        rows,
        residents,
        moves,
        pages,
        places,
        PAGE=page,
        PLACES=padded,
        STEPS=padded.bit_length() - 1,
        num_warps=PLACE_WARPS,
    )
    return moves


def _move(step: Step, residents: Residents, selection: Selection, moves: Moves, page: int) -> None:
    """Write the new token to the host, and copy pages from it to their places, in the planes and in the maps."""
    (batch, heads, pages), width = selection.pages.shape, step.q.shape[3]
    move_pages[MOVERS, heads, batch](
        new_rows(step.k, step.v),
        planes_of(*step.slots.planes),
        planes_of(residents.keys, residents.values),
        selection.pages,
        moves,
        step.rows,
        residents,
        pages,
        residents.page_in.shape[2],
        PAGE=page,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        num_warps=MOVE_WARPS,
    )


@triton.jit(do_not_specialize=["pages", "places"])
def move_pages(
    new,  # keys and values [B, H, D], with the strides of a row and a head; None if another layer has written them
    hosts,  # keys and values [S, H, C, D], with the strides of a slot and a head
    planes,  # and [S, H, R * PAGE, D]
    pages_at,  # int32 [B, H, P], as `select_pages` wrote them
    moves,
    rows,
    residents,  # see `kernels.slots`
    pages,
    places,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
):
    mover, head, row, heads = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(1)
    live, slot = tl.load(rows.live + row), tl.load(rows.slot + row).to(tl.int64)
    keys_at, plane_slot, plane_head = planes[0]
    host_keys_at, host_slot, host_head = hosts[0]
    values_at, host_values_at = planes[1][0], hosts[1][0]
    host = slot * host_slot + head.to(tl.int64) * host_head  # beyond 2**31 elements in a large cache
    plane = slot * plane_slot + head.to(tl.int64) * plane_head
    of_row, of_slot, column = row.to(tl.int64) * heads + head, slot * heads + head, tl.arange(0, COLUMNS)
    if new is not None:
        to = host + tl.load(rows.entry + row) * WIDTH + column
        is_written = (column < WIDTH) & (mover == 0) & (live > 0)
        new_k, new_v = vector_of(new[0], row, head) + column, vector_of(new[1], row, head) + column
        tl.store(host_keys_at + to, tl.load(new_k, mask=is_written), is_written)
        tl.store(host_values_at + to, tl.load(new_v, mask=is_written), is_written)
    element = tl.arange(0, PAGE)[:, None] * WIDTH + column[None, :]
    for move in range(mover, tl.load(moves.counts + of_row), tl.num_programs(0)):
        index = tl.load(moves.wanted + of_row * places + move)
        place = tl.load(moves.freed + of_row * places + move)
        page = tl.load(pages_at + of_row * pages + index)
        tl.store(moves.placed + of_row * pages + index, place)
        tl.store(residents.place_of + of_slot * pages + page, place)
        tl.store(residents.page_in + of_slot * places + place, page)
        mask = (column < WIDTH)[None, :] & has_entries(page, live, PAGE)
        source, target = host + page.to(tl.int64) * (PAGE * WIDTH), plane + place.to(tl.int64) * (PAGE * WIDTH)
        k = tl.load(host_keys_at + source + element, mask=mask)
        v = tl.load(host_values_at + source + element, mask=mask)
        tl.store(keys_at + target + element, k, mask=mask)
        tl.store(values_at + target + element, v, mask=mask)


@triton.jit(do_not_specialize=["pages", "places"])
def place_pages(
    selection,  # as `select_pages` wrote it
    rows,
    residents,  # see `kernels.slots`: freed pages lose their places in place_of, and recalled ones are counted
    moves,  # see `recall`: of `placed`, those that have a place are written
    pages,
    places,
    PAGE: tl.constexpr,
    PLACES: tl.constexpr,  # R, padded to a power of two
    STEPS: tl.constexpr,  # PLACES is 2 ** STEPS
):
    head, row, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    of_row, i = row.to(tl.int64) * heads + head, tl.arange(0, PLACES)
    of_slot = tl.load(rows.slot + row).to(tl.int64) * heads + head
    place_of, selected = residents.place_of + of_slot * pages, selection.pages + of_row * pages
    count = tl.cdiv(tl.load(selection.lengths + row), PAGE)
    page = tl.load(selected + i, mask=i < count, other=0)
    place = tl.load(place_of + page, mask=i < count, other=0)
    tl.store(moves.placed + of_row * pages + i, place, mask=i < count)
    is_wanted = place < 0
    wanted = tl.sum(is_wanted.to(tl.int32), 0)
    tl.store(moves.counts + of_row, wanted)
    if wanted == 0:
        return
    held = tl.load(residents.page_in + of_slot * places + i, mask=i < places, other=0)
    is_empty, is_needed = held < 0, is_listed(held, selected, count, STEPS)
    can_go = (i < places) & ~is_empty & ~is_needed
    share = tl.load(selection.shares + of_row * pages + held, mask=can_go, other=0.0)
    key = tl.where(can_go, lowest_first(share, held), 0)
    is_freed = highest(tl.where(is_empty, FIRST, key), wanted, 64)
    tl.store(place_of + held, -1, mask=is_freed & ~is_empty)
    tl.store(moves.wanted + of_row * places + tl.cumsum(is_wanted.to(tl.int32), 0) - 1, i, mask=is_wanted)
    tl.store(moves.freed + of_row * places + tl.cumsum(is_freed.to(tl.int32), 0) - 1, i, mask=is_freed)
    recalls = tl.sum((is_wanted & has_entries(page, tl.load(rows.live + row), PAGE)).to(tl.int32), 0)
    fetched = residents.fetched + of_slot
    tl.store(fetched, tl.load(fetched) + recalls)


@triton.jit
def is_listed(page, listed, count, STEPS: tl.constexpr):
    """Return bool [PLACES]: whether pages [PLACES] are among the first `count` at `listed`, which are in order."""
    first = tl.zeros_like(page)
    for step in tl.static_range(STEPS + 1):
        further = first + (1 << (STEPS - step))
        is_before = tl.load(listed + further - 1, mask=further <= count, other=2147483647) < page
        first = tl.where(is_before, further, first)
    return tl.load(listed + first, mask=first < count, other=-1) == page


@triton.jit
def lowest_first(share, page):
    """Return uint64 [PLACES], above 0 and below FIRST: higher for lower shares, of equal ones for earlier pages."""
    return ((0xFFFFFFFF - ordered(share)).to(tl.uint64) << 32) | (0x7FFFFFFF - page).to(tl.uint64)


@triton.jit
def has_entries(page, live, PAGE: tl.constexpr):
    """Whether pages have entries beside the new token, which is the last of `live` ones."""
    return page * PAGE + 1 < live
