# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Recall of pages from pinned memory of the host, which the GPU reads and writes as its own.

Every new token is written to the host at once. So a page on the device may be overwritten at any time.

B rows of a step, S slots, H key-value heads, P pages of a slot, R places for pages on the device, D head_dim.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.place_pages import has_entries


@triton.jit(do_not_specialize=["heads", "pages", "places"])
def move_pages(
    k_at,  # None if another layer has written the new token
    v_at,
    host_keys_at,
    host_values_at,
    keys_at,
    values_at,
    pages_at,  # int32 [B, H, P], as `select_pages` wrote them
    wanted_at,  # int32 [B, H, R], as `place_pages` wrote them
    freed_at,
    moves_at,  # int32 [B, H]
    slot_at,
    entry_at,
    live_at,
    place_of_at,  # int32 [S, H, P]
    page_in_at,  # int32 [S, H, R]
    prefetched_at,  # int32 [S, H, R]: 1 is written for places that this prefetch fills; None if it is none
    placed_at,  # int32 [B, H, P]: the places of recalled pages are written here
    k_row,  # strides, in elements
    k_head,
    v_row,
    v_head,
    host_slot,
    host_head,
    plane_slot,
    plane_head,
    heads,
    pages,
    places,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
):
    mover, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live, slot = tl.load(live_at + row), tl.load(slot_at + row).to(tl.int64)
    host = slot * host_slot + head.to(tl.int64) * host_head  # beyond 2**31 elements in a large cache
    plane = slot * plane_slot + head.to(tl.int64) * plane_head
    own, at, column = row.to(tl.int64) * heads + head, slot * heads + head, tl.arange(0, COLUMNS)
    if k_at is not None:
        to, is_written = host + tl.load(entry_at + row) * WIDTH + column, (column < WIDTH) & (mover == 0) & (live > 0)
        tl.store(host_keys_at + to, tl.load(k_at + row * k_row + head * k_head + column, mask=is_written), is_written)
        tl.store(host_values_at + to, tl.load(v_at + row * v_row + head * v_head + column, mask=is_written), is_written)
    element = tl.arange(0, PAGE)[:, None] * WIDTH + column[None, :]
    for move in range(mover, tl.load(moves_at + own), tl.num_programs(0)):
        index, place = tl.load(wanted_at + own * places + move), tl.load(freed_at + own * places + move)
        page = tl.load(pages_at + own * pages + index)
        tl.store(placed_at + own * pages + index, place)
        tl.store(place_of_at + at * pages + page, place)
        tl.store(page_in_at + at * places + place, page)
        if prefetched_at is not None:
            tl.store(prefetched_at + at * places + place, has_entries(page, live, PAGE).to(tl.int32))
        mask = (column < WIDTH)[None, :] & has_entries(page, live, PAGE)
        source, target = host + page.to(tl.int64) * (PAGE * WIDTH), plane + place.to(tl.int64) * (PAGE * WIDTH)
        k, v = (
            tl.load(host_keys_at + source + element, mask=mask),
            tl.load(host_values_at + source + element, mask=mask),
        )
        tl.store(keys_at + target + element, k, mask=mask)
        tl.store(values_at + target + element, v, mask=mask)
