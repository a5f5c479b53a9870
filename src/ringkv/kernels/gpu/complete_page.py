# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Digests of the pages that a step completes.

B rows of a step, S slots, H key-value heads, P pages of a slot, D head_dim.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pages"])
def complete_page(
    k_at,
    keys_at,
    digests_at,  # [S, H, P, 2, D]
    counts_at,  # int32 [S, 5]
    slot_at,
    entry_at,
    live_at,
    place_of_at,  # int32 [S, H, P]: the places of pages in the planes; None if they are in order
    k_row,  # strides, in elements
    k_head,
    plane_slot,
    plane_head,
    digest_slot,
    digest_head,
    pages,
    PAGE: tl.constexpr,  # entries of a page, a power of two
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
):
    head, row = tl.program_id(0), tl.program_id(1)
    slot, entry = tl.load(slot_at + row).to(tl.int64), tl.load(entry_at + row)
    if (tl.load(live_at + row) == 0) | (entry % PAGE != PAGE - 1):
        return
    plane = slot * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 elements in a large cache
    column, page = tl.arange(0, COLUMNS), entry // PAGE
    real = column < WIDTH
    place = page if place_of_at is None else tl.load(place_of_at + (slot * tl.num_programs(0) + head) * pages + page)
    k = tl.load(k_at + row * k_row + head * k_head + column, mask=real, other=0.0)
    is_mean = tl.load(counts_at + slot * 5 + 3) > 0
    upper, lower = digest_of(keys_at + plane + place * PAGE * WIDTH, k, is_mean, PAGE, WIDTH, COLUMNS)
    own = digests_at + slot * digest_slot + head.to(tl.int64) * digest_head + page * 2 * WIDTH + column
    tl.store(own, upper.to(digests_at.dtype.element_ty), mask=real)
    tl.store(own + WIDTH, lower.to(digests_at.dtype.element_ty), mask=real)


@triton.jit
def digest_of(
    keys,  # pointer to the keys of a page
    last,  # [COLUMNS], its last key, which is not written yet
    is_mean,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return the two float32 [COLUMNS] of `kernels.decode_attend_pages.digest`, whose order of sums this has, too."""
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    last = last.to(tl.float32)
    high, low = last, last
    for i in tl.static_range(PAGE - 1):
        key = tl.load(keys + i * WIDTH + column, mask=real, other=0.0).to(tl.float32)
        high, low = tl.maximum(high, key), tl.minimum(low, key)
    middle, total = (high + low) * 0.5, tl.zeros((COLUMNS,), tl.float32)
    for i in tl.static_range(PAGE - 1):
        total += tl.abs(middle - tl.load(keys + i * WIDTH + column, mask=real, other=0.0).to(tl.float32))
    radius = (total + tl.abs(middle - last)) * (1.0 / PAGE)
    return tl.where(is_mean, middle + radius, high), tl.where(is_mean, middle - radius, low)
