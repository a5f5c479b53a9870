# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Causal attention of a chunk of a prompt to its latents: the kernel of `prefill_attend_latent`.

T tokens of the chunk, G query heads, D elements of an entry. Queries of neighbouring tokens and of all heads share a
program's tile, because they attend to the same entries.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.latent_tiles import attend_latents, plain_tile

LN_2 = tl.constexpr(0.6931471805599453)


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
    top, total, acc_first, acc_rest = attend_latents(
        q_first,
        q_rest,
        latents_at,
        None,
        0,
        stop,
        -1,
        None,
        last,
        tl.full((ROWS,), float("-inf"), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS, FIRST), tl.float32),
        tl.zeros((ROWS, REST), tl.float32),
        scale,
        WIDTH,
        FIRST,
        REST,
        BLOCK,
        plain_tile,
        latents_at.dtype.element_ty,
        False,
    )
    out = out_at + place
    tl.store(out + column[None, :], (acc_first / total[:, None]).to(out_at.dtype.element_ty), mask=is_query[:, None])
    tl.store(out + rest[None, :], (acc_rest / total[:, None]).to(out_at.dtype.element_ty), mask=real_rest)
    tl.store(lse_at + query, (top + tl.log2(total)) * LN_2, mask=is_query)
