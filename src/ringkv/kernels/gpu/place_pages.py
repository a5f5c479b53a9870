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


@triton.jit(do_not_specialize=["heads", "pages", "places"])
def place_pages(
    pages_at,  # int32 [B, H, P], as `select_pages` wrote them
    lengths_at,  # int32 [B]
    shares_at,  # float32 [B, H, P]
    slot_at,
    live_at,
    place_of_at,  # int32 [S, H, P]: the place of each page, or -1; freed pages lose theirs here
    page_in_at,  # int32 [S, H, R]: the page in each place, or -1
    prefetched_at,  # int32 [S, H, R]: 1 for places that a prefetch has filled, else 0; cleared here
    fetched_at,  # int32 [S, H, 3], counted here: pages that steps recall, that are prefetched, and hits of these
    placed_at,  # int32 [B, H, P]: the places of the selected pages, if they have one
    wanted_at,  # int32 [B, H, R]: which of the selected pages have none
    freed_at,  # int32 [B, H, R]: the places that these take
    moves_at,  # int32 [B, H]: how many
    heads,
    pages,
    places,
    PAGE: tl.constexpr,
    PLACES: tl.constexpr,  # R, padded to a power of two
    STEPS: tl.constexpr,  # PLACES is 2 ** STEPS
    PREFETCH: tl.constexpr,  # by predicted queries, before the layer has its own
):
    head, row = tl.program_id(0), tl.program_id(1)
    own, i = row.to(tl.int64) * heads + head, tl.arange(0, PLACES)
    at = tl.load(slot_at + row).to(tl.int64) * heads + head
    of_slot, in_slot, selected = place_of_at + at * pages, page_in_at + at * places, pages_at + own * pages
    count = tl.cdiv(tl.load(lengths_at + row), PAGE)
    page = tl.load(selected + i, mask=i < count, other=0)
    place = tl.load(of_slot + page, mask=i < count, other=0)
    tl.store(placed_at + own * pages + i, place, mask=i < count)
    is_wanted = place < 0
    moves = tl.sum(is_wanted.to(tl.int32), 0)
    tl.store(moves_at + own, moves)
    fetched, prefetched = fetched_at + at * 3, prefetched_at + at * places
    if not PREFETCH:
        hits = tl.sum(tl.load(prefetched + place, mask=(i < count) & ~is_wanted, other=0), 0)
        tl.store(fetched + 2, tl.load(fetched + 2) + hits)
    tl.store(prefetched + i, tl.zeros_like(i), mask=i < places)
    if moves == 0:
        return
    held = tl.load(in_slot + i, mask=i < places, other=0)
    is_empty, is_needed = held < 0, is_listed(held, selected, count, STEPS)
    can_go = (i < places) & ~is_empty & ~is_needed
    share = tl.load(shares_at + own * pages + held, mask=can_go, other=0.0)
    key = tl.where(can_go, lowest_first(share, held), 0)
    is_freed = highest(tl.where(is_empty, FIRST, key), moves, 64)
    tl.store(of_slot + held, -1, mask=is_freed & ~is_empty)
    tl.store(wanted_at + own * places + tl.cumsum(is_wanted.to(tl.int32), 0) - 1, i, mask=is_wanted)
    tl.store(freed_at + own * places + tl.cumsum(is_freed.to(tl.int32), 0) - 1, i, mask=is_freed)
    recalls = tl.sum((is_wanted & has_entries(page, tl.load(live_at + row), PAGE)).to(tl.int32), 0)
    to = fetched + PREFETCH
    tl.store(to, tl.load(to) + recalls)


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
