# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Scores of pages: what the products of a step's queries with a page's keys are at most.

B rows of a step, S slots, H key-value heads, G query heads each, P pages of a slot, D head_dim.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["heads", "groups", "pages"])
def score_pages(
    q_at,
    digests_at,  # [S, H, P, 2, D]
    counts_at,  # int32 [S, 5]
    slot_at,
    live_at,
    scores_at,  # float32 [B, H, G, P]: all but the newest pages get one, if a choice is needed
    q_row,  # strides, in elements
    q_head,
    q_group,
    digest_slot,
    digest_head,
    scale,
    heads,
    groups,
    pages,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,  # pages of one program
):
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, total = tl.load(slot_at + row).to(tl.int64), tl.cdiv(tl.load(live_at + row), PAGE)
    counts = counts_at + slot * 5
    stop = total - tl.load(counts + 2)
    if (total <= tl.load(counts)) | (block * BLOCK >= stop):
        return
    column, page = tl.arange(0, COLUMNS), block * BLOCK + tl.arange(0, BLOCK)
    real, is_older = column < WIDTH, page < stop
    own = digests_at + slot * digest_slot + head.to(tl.int64) * digest_head  # beyond 2**31 elements in a large cache
    at = own + page[:, None] * (2 * WIDTH) + column[None, :]
    mask = is_older[:, None] & real[None, :]
    upper = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    lower = tl.load(at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    to = scores_at + (row.to(tl.int64) * heads + head) * groups * pages + page
    for group in range(groups):
        q = tl.load(q_at + row * q_row + head * q_head + group * q_group + column, mask=real, other=0.0).to(tl.float32)
        most = tl.maximum(q, 0.0)[None, :] * upper + tl.minimum(q, 0.0)[None, :] * lower
        tl.store(to + group * pages, tl.sum(most, 1) * scale, mask=is_older)
