# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The new token of a decode step, which its first split attends to and writes.

D head_dim.
"""

import triton
import triton.language as tl


@triton.jit
def attend_new(
    q,  # [ROWS, COLUMNS]
    k_at,  # the new token's [D]
    v_at,
    keys,  # pointers to entry 0 of one slot and head
    values,
    entry,  # that the token takes
    is_first,  # of the splits
    is_writer,  # of the programs of a split
    scale,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return the softmax of the new token in the first split, and that of nothing in others; see `attend_tiles`.

    All tiles must skip its entry, so that no program reads it while it is written, or multiplies by its old content,
    which may be NaN.
    """
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    new_k, new_v = tl.load(k_at + column, mask=real, other=0.0), tl.load(v_at + column, mask=real, other=0.0)
    is_written = real & is_first & is_writer
    tl.store(keys + entry * WIDTH + column, new_k, mask=is_written)
    tl.store(values + entry * WIDTH + column, new_v, mask=is_written)
    score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale
    top = tl.where(is_first, score, float("-inf"))
    total = tl.where(is_first, tl.full((ROWS,), 1.0, tl.float32), 0.0)
    acc = tl.where(is_first, tl.zeros((ROWS, COLUMNS), tl.float32) + new_v.to(tl.float32)[None, :], 0.0)
    return top, total, acc
