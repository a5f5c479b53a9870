# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Selection of the pages that a step reads: the first, the newest, and of those between the pinned ones, then
those with the highest shares.

A row of shares is in the registers of one program, which finds the lowest share that is selected bit by bit. So equal
shares have an order, and nothing is sorted.

B rows of a step, S slots, H key-value heads, G query heads each, P pages of a slot, D head_dim.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Selection(NamedTuple):
    """pages: int32 [B, H, P], those that each head reads, in order. lengths: int32 [B], their live entries.

    shares: float32 [B, H, P], of rows that do not read all of their pages; None if they are not needed.
    """

    pages: Tensor
    lengths: Tensor
    shares: Tensor | None


@triton.jit(do_not_specialize=["groups", "pages"])
def score_pages(
    q,  # [B, H, G, D], with the strides of a row, a head and a query
    digests,  # [S, H, P, 2, D], with the strides of a slot and a head
    counts_at,  # int32 [S, 3]
    rows,
    scores_at,  # float32 [B, H, G, P]: all but the newest pages get one, if a choice is needed
    scale,
    groups,
    pages,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,  # pages of one program
):
    """Write what the products of a step's queries with a page's keys may be."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, total = tl.load(rows.slot + row).to(tl.int64), tl.cdiv(tl.load(rows.live + row), PAGE)
    counts = counts_at + slot * 3
    stop = total - tl.load(counts + 2)
    if (total <= tl.load(counts)) | (block * BLOCK >= stop):
        return
    q_at, q_row, q_head, q_group = q
    digests_at, digest_slot, digest_head = digests
    column, page = tl.arange(0, COLUMNS), block * BLOCK + tl.arange(0, BLOCK)
    real, is_older = column < WIDTH, page < stop
    of_head = (
        digests_at + slot * digest_slot + head.to(tl.int64) * digest_head
    )  # beyond 2**31 elements in a large cache
    at = of_head + page[:, None] * (2 * WIDTH) + column[None, :]
    mask = is_older[:, None] & real[None, :]
    upper = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    lower = tl.load(at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    to = scores_at + (row.to(tl.int64) * tl.num_programs(1) + head) * groups * pages + page
    for group in range(groups):
        query = tl.load(q_at + row * q_row + head * q_head + group * q_group + column, mask=real, other=0.0)
        query = query.to(tl.float32)
        score = tl.maximum(query, 0.0)[None, :] * upper + tl.minimum(query, 0.0)[None, :] * lower
        tl.store(to + group * pages, tl.sum(score, 1) * scale, mask=is_older)


@triton.jit
def ordered(score):
    """Return uint32 in the order of float32 scores, above 0. NaN is like -inf; -0 is like 0."""
    score = tl.where(score == score, score, float("-inf"))
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def highest(places, wanted, BITS: tl.constexpr):
    """Return bool [PAGES]: the `wanted` highest places [PAGES], unsigned with BITS, of equal ones the first."""
    bit = tl.full((), 1, places.dtype)
    least = tl.full((), 0, places.dtype)  # of the selected ones
    for step in range(BITS):
        higher = least | (bit << (BITS - 1 - step))
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


@triton.jit(do_not_specialize=["groups", "pages"])
def select_pages(
    scores_at,  # float32 [B, H, G, P], as `score_pages` wrote them
    pins_at,  # float32 [S, H, P], contiguous
    counts_at,  # int32 [S, 3]
    rows,
    selection,  # see `Selection`; shares are filled for rows that need a choice
    groups,
    pages,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,  # P, padded to a power of two
):
    head, row, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    live, slot = tl.load(rows.live + row), tl.load(rows.slot + row).to(tl.int64)
    counts, total = counts_at + slot * 3, tl.cdiv(live, PAGE)
    limit, leading, newest = tl.load(counts), tl.load(counts + 1), tl.load(counts + 2)
    if head == 0:
        tl.store(selection.lengths + row, live - tl.maximum(total - limit, 0) * PAGE)
    of_head, page = (row.to(tl.int64) * heads + head) * pages, tl.arange(0, PAGES)
    if total <= limit:
        tl.store(selection.pages + of_head + page, page, mask=page < total)
        return
    stop = total - newest
    is_between = (page >= leading) & (page < stop)
    pins = pins_at + (slot * heads + head) * pages + page
    share = tl.load(pins, mask=is_between, other=float("-inf"))
    scores = scores_at + of_head * groups
    for query in range(groups):
        score = tl.load(scores + query * pages + page, mask=page < stop, other=float("-inf"))
        share = tl.maximum(share, promised_share(score))
    if selection.shares is not None:
        tl.store(selection.shares + of_head + page, share, mask=page < stop)
    is_best = highest(tl.where(is_between, ordered(share), 0), limit - leading - newest, 32)
    is_read = (page < leading) | is_best | ((page >= stop) & (page < total))
    tl.store(selection.pages + of_head + tl.cumsum(is_read.to(tl.int32), 0) - 1, page, mask=is_read)
