# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention over latents: of one split of a decode step, and of a chunk of a prompt.

A split of plain latents includes the new token. Encoded ones are all written.

B rows of a step, S slots, Q query heads, C entries, D elements of an entry, E first latents that are exact, which
`merge_splits` adds, T tokens of a chunk.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.latent_tiles import attend_latents, exact_bits, no_latents, plain_tile, store_latent_part
from ringkv.kernels.gpu.splits import LN_2
from ringkv.kernels.gpu.tiles import entries_per_split


@triton.jit(do_not_specialize=["queries"])
def latent_split(
    q,  # [B, 1, Q, D], with the strides of a row and a query; if latents are encoded, as `rotate_queries` wrote them
    dots_at,  # as `rotate_queries` wrote them; None: latents are plain
    new,  # [B, 1, D], with the stride of a row; None: latents are encoded
    planes,  # latents [S, 1, C, ...] and, as TILE takes them, their ranges; each with the stride of a slot
    centers,  # float32 [S, 1, D + E D], with the stride of a slot; None: latents are plain
    rows,
    parts,  # as `store_latent_part` writes them
    scale,  # times log2(e)
    queries,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,  # of `latent_tiles` and `encoded_latent_tiles`
    PACKED: tl.constexpr,  # as on a device: Triton's interpreter cannot multiply bfloat16
):
    split, block, row, splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(0)
    live = tl.load(rows.live + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    q_at, q_row, q_query = q
    slot = tl.load(rows.slot + row).to(tl.int64)  # beyond 2**31 elements in a large cache
    query, column, rest = block * ROWS + tl.arange(0, ROWS), tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    is_query, is_rest = query < queries, rest < WIDTH
    of_query = q_at + row * q_row + query[:, None] * q_query
    q_first = tl.load(of_query + column[None, :], mask=is_query[:, None], other=0.0)
    q_rest = tl.load(of_query + rest[None, :], mask=is_query[:, None] & is_rest[None, :], other=0.0)
    if not PACKED:
        q_first, q_rest = q_first.to(tl.float32), q_rest.to(tl.float32)
    latents = planes[0][0] + slot * planes[0][1]
    if new is None:
        ranges, newest = planes[1][0] + slot * planes[1][1], -1
        exact = exact_bits(centers[0] + slot * centers[1] + WIDTH, WIDTH, EXACT)
        largest = tl.load(dots_at + (row * queries + query) * (2 + EXACT), mask=is_query, other=0.0)
        factor = (largest * scale)[:, None]
        softmax = no_latents(ROWS, FIRST, REST)
    else:
        # The first split adds the new token to the softmax and writes it to the cache. All tiles skip its entry, so
        # that no program reads it while it is written, or multiplies by its old content, which may be NaN.
        ranges, exact, factor, newest = None, None, scale, tl.load(rows.entry + row)
        new_first = tl.load(new[0] + row * new[1] + column)
        new_rest = tl.load(new[0] + row * new[1] + rest, mask=is_rest, other=0.0)
        is_first = split == 0
        is_written = is_first & (block == 0)
        tl.store(latents + newest * WIDTH + column, new_first, mask=(column < FIRST) & is_written)
        tl.store(latents + newest * WIDTH + rest, new_rest, mask=is_rest & is_written)
        new_first, new_rest = new_first.to(tl.float32)[None, :], new_rest.to(tl.float32)[None, :]
        score = tl.sum(q_first.to(tl.float32) * new_first, 1) + tl.sum(q_rest.to(tl.float32) * new_rest, 1)
        top = tl.where(is_first, score * scale, float("-inf"))
        total = tl.where(is_first, tl.full((ROWS,), 1.0, tl.float32), 0.0)
        acc_first = tl.where(is_first, tl.zeros((ROWS, FIRST), tl.float32) + new_first, 0.0)
        acc_rest = tl.where(is_first, tl.zeros((ROWS, REST), tl.float32) + new_rest, 0.0)
        softmax = top, total, acc_first, acc_rest
    DTYPE: tl.constexpr = q_at.dtype.element_ty
    q = q_first, q_rest
    softmax = attend_latents(
        q, latents, ranges, first, stop, newest, exact, None, softmax, factor, WIDTH, BLOCK, TILE, DTYPE, PACKED
    )
    at = (row.to(tl.int64) * splits + split) * queries + query  # beyond 2**31 elements with many slots
    store_latent_part(parts, at, is_query, softmax, WIDTH, FIRST, REST)


@triton.jit(do_not_specialize=["tokens", "groups", "start"])
def latent_prefill(
    q_at,  # [T, G, D]
    latents_at,  # [start + T, D]
    out_at,  # [T, G, D]
    lse_at,  # float32 [T, G], natural
    scale,  # times log2(e)
    tokens,
    groups,
    start,  # place of the first token in the prompt
    ROWS: tl.constexpr,  # queries of one program
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    """Attend causally with a chunk of a prompt to its latents.

    Queries of neighbouring tokens and of all heads share a program's tile, because they attend to the same entries.
    """
    # Late tokens see most entries, so their programs start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    query, column, rest = block * ROWS + tl.arange(0, ROWS), tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    is_query = query < tokens * groups
    real_rest = is_query[:, None] & (rest < WIDTH)[None, :]
    place = query[:, None] * WIDTH
    q_first = tl.load(q_at + place + column[None, :], mask=is_query[:, None], other=0.0)
    q_rest = tl.load(q_at + place + rest[None, :], mask=real_rest, other=0.0)
    if UPCAST:
        q_first, q_rest = q_first.to(tl.float32), q_rest.to(tl.float32)
    last = start + query // groups
    stop = tl.minimum(start + (block * ROWS + ROWS - 1) // groups, start + tokens - 1) + 1
    DTYPE: tl.constexpr = latents_at.dtype.element_ty
    q, softmax = (q_first, q_rest), no_latents(ROWS, FIRST, REST)
    top, total, acc_first, acc_rest = attend_latents(
        q, latents_at, None, 0, stop, -1, None, last, softmax, scale, WIDTH, BLOCK, plain_tile, DTYPE, False
    )
    out = out_at + place
    tl.store(out + column[None, :], (acc_first / total[:, None]).to(out_at.dtype.element_ty), mask=is_query[:, None])
    tl.store(out + rest[None, :], (acc_rest / total[:, None]).to(out_at.dtype.element_ty), mask=real_rest)
    tl.store(lse_at + query, (top + tl.log2(total)) * LN_2, mask=is_query)
