# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Selection of the pages that a step reads: the first, the newest, and those between with the highest scores.

A row of scores is in the registers of one program, which finds the lowest score that is selected bit by bit. So equal
scores have an order, and nothing is sorted.

B rows of a step, S slots, H key-value heads, P pages of a slot.
"""

import triton
import triton.language as tl


@triton.jit
def ordered(score):
    """Return uint32 in the order of float32 scores, above 0. NaN is like -inf; -0 is like 0."""
    score = tl.where(score == score, score, float("-inf"))
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def highest(places, wanted):
    """Return bool [PAGES]: the `wanted` highest places uint32 [PAGES], of equal ones the first."""
    one = tl.full((), 1, tl.uint32)
    least = tl.full((), 0, tl.uint32)  # of the selected ones
    for step in range(32):
        higher = least | (one << (31 - step))
        least = tl.where(tl.sum((places >= higher).to(tl.int32), 0) >= wanted, higher, least)
    is_above, is_equal = places > least, places == least
    left = wanted - tl.sum(is_above.to(tl.int32), 0)
    return is_above | (is_equal & (tl.cumsum(is_equal.to(tl.int32), 0) <= left))


@triton.jit(do_not_specialize=["heads", "pages"])
def select_pages(
    scores_at,  # float32 [B, H, P], as `score_pages` wrote them
    counts_at,  # int32 [S, 4]
    slot_at,
    live_at,
    pages_at,  # int32 [B, H, P]: the selected ones in order
    lengths_at,  # int32 [B], their live entries
    heads,
    pages,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,  # P, padded to a power of two
):
    head, row = tl.program_id(0), tl.program_id(1)
    live, slot = tl.load(live_at + row), tl.load(slot_at + row).to(tl.int64)
    counts, total = counts_at + slot * 4, tl.cdiv(live, PAGE)
    most, first, newest = tl.load(counts), tl.load(counts + 1), tl.load(counts + 2)
    if head == 0:
        tl.store(lengths_at + row, live - tl.maximum(total - most, 0) * PAGE)
    own, page = (row.to(tl.int64) * heads + head) * pages, tl.arange(0, PAGES)
    if total <= most:
        tl.store(pages_at + own + page, page, mask=page < total)
        return
    stop = total - newest
    is_between = (page >= first) & (page < stop)
    places = ordered(tl.load(scores_at + own + page, mask=is_between, other=0.0))
    is_best = highest(tl.where(is_between, places, 0), most - first - newest)
    is_read = (page < first) | is_best | ((page >= stop) & (page < total))
    tl.store(pages_at + own + tl.cumsum(is_read.to(tl.int32), 0) - 1, page, mask=is_read)
