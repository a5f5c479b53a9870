# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Recall of pages from pinned memory of the host, which the GPU reads and writes as its own.

Every new token is written to the host at once. So a page on the device may be overwritten at any time.

B rows of a step, S slots, H key-value heads, P pages of a slot, R places for pages on the device, D head_dim.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.place_pages import has_entries
from ringkv.kernels.gpu.tiles import vector_of


@triton.jit(do_not_specialize=["pages", "places"])
def move_pages(
    new,  # keys and values [B, H, D], with the strides of a row and a head; None if another layer has written them
    hosts,  # keys and values [S, H, C, D], with the strides of a slot and a head
    planes,  # and [S, H, R * PAGE, D]
    pages_at,  # int32 [B, H, P], as `select_pages` wrote them
    moves,  # see `recall`
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
