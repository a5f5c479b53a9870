# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Places of the pages that a step reads, and which of them to recall to which places.

A page that is not on the device takes an empty place, else that of the page with the lowest share of those that the
step does not read. So sinks and newest pages, which every step reads, stay.

B rows of a step, S slots, H key-value heads, P pages of a slot, R places for pages on the device.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.select_pages import highest, ordered

FIRST = tl.constexpr((1 << 64) - 1)


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
