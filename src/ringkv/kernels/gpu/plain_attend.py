"""Decode attention over plain entries: two Triton kernels whose launch does not depend on lengths, as a graph needs."""

import triton
from torch import Tensor

from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.readings import Reading
from ringkv.kernels.gpu.splits import LOG2_E, Attended, empty_parts, merged
from ringkv.kernels.gpu.step import Step
from ringkv.kernels.gpu.strided import new_rows, planes_of, strided
from ringkv.kernels.gpu.tiling import Tiling, chip, tile, tiling


def attend(step: Step, reading: Reading, cut: Tiling) -> Attended:
    """Write the new token, if there is one, and attend to the entries of the reading."""
    q, (rows, heads, queries, width), padded = step.q, step.q.shape, tile(step.q)
    keys, values = step.slots.planes
    parts, blocks = empty_parts(q, cut.splits), triton.cdiv(queries, padded.rows)
    attend_split[cut.splits, heads * blocks, rows](
        strided(q, 3),
        new_rows(step.k, step.v),
        planes_of(keys, values),
        step.rows,
        reading.index,
        parts,
        step.scale * LOG2_E,
        queries,
        READ=reading.functions,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=cut.block,
        UPCAST=not keys.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(q, parts, step.rows, cut, reading=reading)


def usual_tiling(q: Tensor, capacity: int) -> Tiling:
    """Return the default tiling for q [B, H, Q, D] and heads of so many entries."""
    padded = tile(q)
    programs = q.shape[0] * q.shape[1] * triton.cdiv(q.shape[2], padded.rows)
    return tiling(programs, capacity, padded, chip(q.device))
