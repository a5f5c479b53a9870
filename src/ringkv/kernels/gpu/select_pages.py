# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Selection of the pages that a step reads, and digests of those that it completes.

It reads the first pages, the newest, and of those between the pinned ones, then those with the highest shares. A row of
shares is in the registers of one program, which finds the lowest share that is selected bit by bit. So equal shares
have an order, and nothing is sorted.

B rows of a step, S slots, H key-value heads, G query heads each, P pages of a slot, D elements of a vector.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ringkv.kernels.gpu.complete_page import complete_page
from ringkv.kernels.gpu.forms import FORMS
from ringkv.kernels.gpu.hadamard import stages
from ringkv.kernels.gpu.readings import Reading, Selection
from ringkv.kernels.gpu.step import Step, planes_of, strided
from ringkv.kernels.slots import Pages, Rows

SCORED = 32  # pages that a program scores
SCORE_WARPS, MOST_WARPS = 4, 16
SELECTED = 1024  # pages of each warp of a program that selects
PLAIN_WARPS, DECODE_WARPS, DECODED = 1, 4, 4096  # elements that a program decodes at a time


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


def complete(step: Step, reading: Pages, everywhere: Reading, page: int) -> None:
    """Write the digests of pages of so many entries whose last key is new. `everywhere`: where the slot has its pages.

    Encoded keys are all written. Of plain ones the new one is not.
    """
    if step.k is None:
        return
    (rows, heads, width), digests, form = step.k.shape, reading.digests, FORMS.get(step.slots.encoding)
    assert digests.stride()[2:] == (2 * width, width, 1)
    keys, columns = step.slots.planes[0], triton.next_power_of_2(width)
    stored = [keys] if form is None else [keys.view(form.stored), step.slots.planes[1].view(form.ranges)]
    complete_page[heads, rows](
        strided(step.k, 2),
        planes_of(*stored),
        strided(digests, 2),
        step.rows,
        everywhere.index,
        READ=everywhere.functions,
        DECODE=form and form.decode,
        PAGE=page,
        KEYS=min(page, max(1, DECODED // columns)),
        SIZE=stored[0].shape[-1],
        WIDTH=width,
        COLUMNS=columns,
        STAGES=stages(width),
        num_warps=DECODE_WARPS if form else PLAIN_WARPS,
        enable_fp_fusion=False,  # see `complete_page`
    )


def select(step: Step, reading: Pages, page: int, with_shares: bool = False) -> Selection:
    """Select the pages of so many entries that a step reads."""
    return selected(scores(step, reading, page), reading, step.rows, page, with_shares)


def scores(step: Step, reading: Pages, page: int) -> Tensor:
    """Return float32 [B, H, G, P] for pages of so many entries. A row that reads all of its pages has none."""
    (rows, heads, groups, width), pages = step.q.shape, reading.digests.shape[2]
    promised = step.q.new_empty(rows, heads, groups, pages, dtype=torch.float32)
    score_pages[triton.cdiv(pages, SCORED), heads, rows](
        strided(step.q, 3),
        strided(reading.digests, 2),
        counts_of(reading),
        step.rows,
        promised,
        step.scale,
        groups,
        pages,
        PAGE=page,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        BLOCK=SCORED,
        num_warps=SCORE_WARPS,
    )
    return promised


def selected(scores: Tensor, reading: Pages, rows: Rows, page: int, with_shares: bool = False) -> Selection:
    """Select pages by float32 [B, H, G, P]."""
    batch, heads, groups, pages = scores.shape
    assert reading.pins.is_contiguous()
    shares = scores.new_empty(batch, heads, pages) if with_shares else None
    selection = Selection(scores.new_empty(batch, heads, pages, dtype=torch.int32), torch.empty_like(rows.live), shares)
    padded = triton.next_power_of_2(pages)
    select_pages[heads, batch](
        scores,
        reading.pins,
        counts_of(reading),
        rows,
        selection,
        groups,
        pages,
        PAGE=page,
        PAGES=padded,
        num_warps=max(1, min(MOST_WARPS, padded // SELECTED)),
    )
    return selection


def counts_of(reading: Pages) -> Tensor:
    assert reading.counts.stride() == (3, 1)
    return reading.counts
