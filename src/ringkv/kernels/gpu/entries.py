"""Attention to the entries of heads in any encoding of whole entries, by any reading.

Plain entries have two Triton kernels whose launch does not depend on lengths, as a graph needs.
"""

import triton

from ringkv.kernels.gpu import encoded_attend
from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.forms import FORMS
from ringkv.kernels.gpu.readings import Reading
from ringkv.kernels.gpu.splits import LOG2_E, OutAndLse, empty_parts, merged
from ringkv.kernels.gpu.step import Step, new_rows, planes_of, strided
from ringkv.kernels.gpu.tiling import Tiling, chip, tile, tiling


def usual_tiling(step: Step, capacity: int) -> Tiling:
    """Return the default tiling for heads of so many entries."""
    if is_encoded(step):
        return encoded_attend.usual_tiling(step, capacity)
    rows, heads, queries, _ = step.q.shape
    padded = tile(step.q)
    return tiling(rows * heads * triton.cdiv(queries, padded.rows), capacity, padded, chip(step.q.device))


def write(step: Step, reading: Reading) -> None:
    """Write the new token, if there is one and `attend` does not write it."""
    if is_encoded(step) and step.k is not None:
        encoded_attend.write(step, reading)


def attend(step: Step, reading: Reading, cut: Tiling) -> OutAndLse:
    """Attend to the entries of the reading. If they are plain, write the new token first, if there is one."""
    if is_encoded(step):
        return encoded_attend.attend(step, reading, cut)
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


def is_encoded(step: Step) -> bool:
    return step.slots.encoding in FORMS
