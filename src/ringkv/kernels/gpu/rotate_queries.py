# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What a step's queries need once for all splits: the second kernel of attention over encoded entries.

Vectors are rotated in groups of which the last one may have fewer elements; those of heads are one group.

B rows of a step, H key-value heads, Q queries each, D head_dim, E first keys that a slot keeps exactly.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ringkv.kernels.gpu.hadamard import Rotation, rotate_groups
from ringkv.kernels.gpu.step import Step, strided
from ringkv.kernels.gpu.tiles import vector_of
from ringkv.kernels.gpu.tiling import tile

WARPS = 4


def rotated_queries(step: Step, dtype: torch.dtype, rows: int, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Return what `rotate_queries` writes in this dtype, with so many queries of a program."""
    (batch, heads, queries, width), columns = step.q.shape, tile(step.q).columns
    centers_of_head = step.centers.shape[-1] // width
    rotated = step.q.new_empty(step.q.shape, dtype=dtype)
    dots = step.q.new_empty(batch, heads, queries, 1 + centers_of_head, dtype=torch.float32)
    rotate_queries[triton.cdiv(queries, rows), heads, batch](
        strided(step.q, 3),
        strided(step.centers, 2),
        step.rows,
        rotated,
        dots,
        queries,
        ROWS=rows,
        WIDTH=width,
        COLUMNS=columns,
        WHOLE=rotation.whole,
        WHOLE_STAGES=rotation.whole_stages,
        STAGES=rotation.stages,
        ORDER=rotation.order,
        CENTERS=centers_of_head,
        num_warps=WARPS,
    )
    return rotated, dots


@triton.jit(do_not_specialize=["queries"])
def rotate_queries(
    q,  # [B, H, Q, D], with the strides of a row, a head and a query
    centers,  # float32 [S, H, D + E D], with the strides of a slot and a head
    rows,
    rotated_at,  # [B, H, Q, D], in ORDER: rotated, divided by their largest element, which is what float16 rounds best
    dots_at,  # float32 [B, H, Q, 2 + E]: largest element, products with the center and with first keys minus center
    queries,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    WHOLE: tl.constexpr,  # elements in whole groups, before the last one
    WHOLE_STAGES: tl.constexpr,  # of the rotation of a whole group
    STAGES: tl.constexpr,  # and of the last one
    ORDER: tl.constexpr,  # where elements are in a stored vector
    CENTERS: tl.constexpr,  # 1 + E
):
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if tl.load(rows.live + row) == 0:
        return
    query, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    real, is_query = column < WIDTH, query < queries
    mask = is_query[:, None] & real[None, :]
    q_at, q_row, q_head, q_query = q
    of_query = q_at + row * q_row + head * q_head + query[:, None] * q_query + column[None, :]
    vectors = tl.load(of_query, mask=mask, other=0.0).to(tl.float32)
    place = (row * tl.num_programs(1) + head) * queries + query
    of_slot = vector_of(centers, tl.load(rows.slot + row).to(tl.int64), head) + column
    for which in tl.static_range(CENTERS):
        center = tl.load(of_slot + which * WIDTH, mask=real, other=0.0)
        tl.store(dots_at + place * (1 + CENTERS) + 1 + which, tl.sum(vectors * center[None, :], 1), mask=is_query)
    is_whole = tl.reshape(tl.broadcast_to((column < WHOLE)[None, :], (ROWS, COLUMNS)), (ROWS * COLUMNS,))
    rotated = rotate_groups(tl.reshape(vectors, (ROWS * COLUMNS,)), is_whole, ROWS * COLUMNS, WHOLE_STAGES, STAGES)
    rotated = tl.reshape(rotated, (ROWS, COLUMNS))
    largest = tl.max(tl.abs(rotated), 1)
    tl.store(dots_at + place * (1 + CENTERS), largest, mask=is_query)
    rotated = rotated / tl.where(largest > 0, largest, 1.0)[:, None]
    to = rotated_at + place[:, None] * WIDTH + ORDER(column, WIDTH)[None, :]
    tl.store(to, rotated.to(rotated_at.dtype.element_ty), mask=mask)
