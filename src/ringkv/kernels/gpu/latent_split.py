# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention of one split over latents, including the new token: the first kernel of `decode_attend_latent`.

B rows of a step, G query heads, C entries, D elements of an entry, S splits.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.latent_tiles import attend_latents, plain_tile, store_latent_part
from ringkv.kernels.gpu.tiles import entries_per_split


@triton.jit(do_not_specialize=["groups", "splits"])
def latent_split(
    q_at,
    k_at,
    latents_at,
    slot_at,
    entry_at,
    live_at,
    part_at,  # as `store_latent_part` writes them
    lse_at,
    q_row,  # strides, in elements
    q_group,
    k_row,
    plane_slot,
    scale,  # times log2(e)
    groups,
    splits,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    split, block, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = tl.load(live_at + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    entry, slot = tl.load(entry_at + row), tl.load(slot_at + row).to(tl.int64)
    query, column, rest = block * ROWS + tl.arange(0, ROWS), tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    is_query, is_rest = query < groups, rest < WIDTH
    real_rest = is_query[:, None] & is_rest[None, :]
    queries = q_at + row * q_row + query[:, None] * q_group
    q_first = tl.load(queries + column[None, :], mask=is_query[:, None], other=0.0)
    q_rest = tl.load(queries + rest[None, :], mask=real_rest, other=0.0)
    if UPCAST:
        q_first, q_rest = q_first.to(tl.float32), q_rest.to(tl.float32)
    latents = latents_at + slot * plane_slot  # beyond 2**31 elements in a large cache

    # The first split adds the new token to the softmax and writes it to the cache. All tiles skip its entry, so that no
    # program reads it while it is written, or multiplies by its old content, which may be NaN.
    new_first = tl.load(k_at + row * k_row + column)
    new_rest = tl.load(k_at + row * k_row + rest, mask=is_rest, other=0.0)
    is_first = split == 0
    is_written = is_first & (block == 0)
    tl.store(latents + entry * WIDTH + column, new_first, mask=(column < FIRST) & is_written)
    tl.store(latents + entry * WIDTH + rest, new_rest, mask=is_rest & is_written)
    new_first, new_rest = new_first.to(tl.float32)[None, :], new_rest.to(tl.float32)[None, :]
    score = tl.sum(q_first.to(tl.float32) * new_first, 1) + tl.sum(q_rest.to(tl.float32) * new_rest, 1)
    top = tl.where(is_first, score * scale, float("-inf"))
    total = tl.where(is_first, tl.full((ROWS,), 1.0, tl.float32), 0.0)
    acc_first = tl.where(is_first, tl.zeros((ROWS, FIRST), tl.float32) + new_first, 0.0)
    acc_rest = tl.where(is_first, tl.zeros((ROWS, REST), tl.float32) + new_rest, 0.0)

    top, total, acc_first, acc_rest = attend_latents(
        q_first,
        q_rest,
        latents,
        None,
        first,
        stop,
        entry,
        None,
        None,
        top,
        total,
        acc_first,
        acc_rest,
        scale,
        WIDTH,
        FIRST,
        REST,
        BLOCK,
        plain_tile,
        latents_at.dtype.element_ty,
        False,
    )
    at = (row.to(tl.int64) * splits + split) * groups + query  # beyond 2**31 elements with many slots
    store_latent_part(part_at, lse_at, at, is_query, top, total, acc_first, acc_rest, WIDTH, FIRST, REST)
