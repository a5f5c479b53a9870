# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Scores of pages: what the products of a step's queries with a page's keys may be.

B rows of a step, S slots, H key-value heads, G query heads each, P pages of a slot, D head_dim.
"""

import triton
import triton.language as tl


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
