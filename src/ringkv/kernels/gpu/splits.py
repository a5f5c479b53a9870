"""Partial results of splits, and their merging.

B rows of a step, H key-value heads, Q queries of each, D elements of a vector.
"""

from math import log2

import torch
from torch import Tensor

from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.readings import EVERY, Reading
from ringkv.kernels.gpu.tiling import Tiling, tile
from ringkv.kernels.slots import Rows

LOG2_E = log2(2.718281828459045)
MERGE_STEP = 16  # splits that are read at a time

Attended = tuple[Tensor, Tensor]
"""out [B, H, Q, D] and its natural log-sum-exp, float32 [B, H, Q]."""


def empty_parts(q: Tensor, splits: int) -> Attended:
    """Allocate the splits' partial results: float32 [B, H, splits, Q, D] and [B, H, splits, Q]."""
    rows, heads, queries, width = q.shape
    part = q.new_empty(rows, heads, splits, queries, width, dtype=torch.float32)
    return part, q.new_empty(part.shape[:-1], dtype=torch.float32)


def merged(q: Tensor, parts: Attended, rows: Rows, cut: Tiling, stages: int = 0, reading: Reading = EVERY) -> Attended:
    """Merge the splits of what rows read to the result for q [B, H, Q, D], rotated by so many stages."""
    (batch, heads, queries, width), columns = q.shape, tile(q).columns
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)
    merge_splits[queries, heads, batch](
        parts,
        out,
        lse,
        rows,
        reading.index,
        cut.splits,
        READ=reading.functions,
        WIDTH=width,
        COLUMNS=columns,
        BLOCK=cut.block,
        STEP=MERGE_STEP,
        STAGES=stages,
        num_warps=max(2, columns // 128),
    )
    return out, lse
