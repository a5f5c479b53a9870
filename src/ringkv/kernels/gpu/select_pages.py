# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Selection of the pages that a step reads: the first, the newest, and of those between the pinned ones, then
those with the highest shares.

A row of shares is in the registers of one program, which finds the lowest share that is selected bit by bit. So equal
shares have an order, and nothing is sorted.

B rows of a step, S slots, H key-value heads, G query heads each, P pages of a slot.
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
def highest(places, wanted, BITS: tl.constexpr):
    """Return bool [PAGES]: the `wanted` highest places [PAGES], unsigned with BITS, of equal ones the first."""
    one = tl.full((), 1, places.dtype)
    least = tl.full((), 0, places.dtype)  # of the selected ones
    for step in range(BITS):
        higher = least | (one << (BITS - 1 - step))
        least = tl.where(tl.sum((places >= higher).to(tl.int32), 0) >= wanted, higher, least)
    is_above, is_equal = places > least, places == least
    left = wanted - tl.sum(is_above.to(tl.int32), 0)
    return is_above | (is_equal & (tl.cumsum(is_equal.to(tl.int32), 0) <= left))


@triton.jit
def promised_share(score):
    """Return the logarithms of the shares of attention that scores float32 [PAGES] promise. NaN promises nothing."""
    finite = tl.minimum(tl.where(score == score, score, float("-inf")), 3.4028234663852886e38)
    top = tl.max(finite, 0)
    total = top + tl.log(tl.sum(tl.exp(finite - top), 0))
    return tl.where(top > float("-inf"), finite - total, float("-inf"))


@triton.jit(do_not_specialize=["heads", "groups", "pages"])
def select_pages(
    scores_at,  # float32 [B, H, G, P], as `score_pages` wrote them
    pins_at,  # float32 [S, H, P], contiguous
    counts_at,  # int32 [S, 5]
    slot_at,
    live_at,
    shares_at,  # float32 [B, H, P]: the highest shares that queries promise to pages, if a choice is needed; or None
    pages_at,  # int32 [B, H, P]: the selected ones in order
    lengths_at,  # int32 [B], their live entries
    heads,
    groups,
    pages,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,  # P, padded to a power of two
):
    head, row = tl.program_id(0), tl.program_id(1)
    live, slot = tl.load(live_at + row), tl.load(slot_at + row).to(tl.int64)
    counts, total = counts_at + slot * 5, tl.cdiv(live, PAGE)
    most, first, newest = tl.load(counts), tl.load(counts + 1), tl.load(counts + 2)
    by_layer = tl.load(counts + 4) > 0  # all heads read the same pages, and have the same pins
    if head == 0:
        tl.store(lengths_at + row, live - tl.maximum(total - most, 0) * PAGE)
    own, page = (row.to(tl.int64) * heads + head) * pages, tl.arange(0, PAGES)
    if total <= most:
        tl.store(pages_at + own + page, page, mask=page < total)
        return
    stop = total - newest
    is_between = (page >= first) & (page < stop)
    pins = pins_at + (slot * heads + head) * pages + page
    share = tl.load(pins, mask=is_between, other=float("-inf"))
    first_head, count = tl.where(by_layer, 0, head), tl.where(by_layer, heads, 1)
    scores = scores_at + (row.to(tl.int64) * heads + first_head) * groups * pages
    for query in range(count * groups):
        score = tl.load(scores + query * pages + page, mask=page < stop, other=float("-inf"))
        share = tl.maximum(share, promised_share(score))
    if shares_at is not None:
        tl.store(shares_at + own + page, share, mask=page < stop)
    is_best = highest(tl.where(is_between, ordered(share), 0), most - first - newest, 32)
    is_read = (page < first) | is_best | ((page >= stop) & (page < total))
    tl.store(pages_at + own + tl.cumsum(is_read.to(tl.int32), 0) - 1, page, mask=is_read)
