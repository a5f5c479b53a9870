"""Attention to the entries of heads in any encoding of whole entries, by any reading.

Launches do not depend on lengths, as a graph needs. Encoded entries have four kernels: the first writes the new token,
the second rotates the queries, the third attends to one split, and the last merges. Plain ones have the last two.

B rows of a step, S slots, H key-value heads, Q queries of each, D elements of a vector. A row's result depends only on
its slot's length and on fixed shapes, not on its neighbours.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton

from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.attend_words import attend_words
from ringkv.kernels.gpu.forms import FORMS, WORD, Form
from ringkv.kernels.gpu.hadamard import UNROTATED, Rotation, stages
from ringkv.kernels.gpu.readings import Reading
from ringkv.kernels.gpu.rotate_queries import rotated_queries
from ringkv.kernels.gpu.splits import LOG2_E, OutAndLse, empty_parts, merged
from ringkv.kernels.gpu.step import Step, new_rows, planes_of, strided
from ringkv.kernels.gpu.tiling import MIN_ROWS, Tile, Tiling, chip, split, tile, tiling
from ringkv.kernels.gpu.write_token import write_token

LEAST_ROWS = 8  # queries of one program over encoded entries
ENTRIES, MOST_ELEMENTS = 64, 8192  # of a tile of them, by warp: they are in registers
ONE_WARP, MORE_WARPS = 16, 4  # queries of at most 128 elements that one warp can process; warps for more
FLOAT32 = Tiling(1, 16, 8, 2)  # does not use tensor cores
ENCODE_WARPS = 1


def write(step: Step, reading: Reading) -> None:
    """Encode the new token and write it to the slots of rows with live entries. `attend` writes plain ones."""
    form = FORMS.get(step.slots.encoding)
    if form is None or step.k is None:
        return
    rows, heads, width = step.k.shape
    keys, key_scales, values, value_scales = step.slots.planes
    keys, values = keys.view(form.stored), values.view(form.stored)
    write_token[heads, rows](
        new_rows(step.k, step.v),
        planes_of(keys, key_scales, values, value_scales),
        strided(step.centers, 2),
        step.rows,
        reading.index,
        READ=reading.functions,
        STORE=form.store,
        SIZE=keys.shape[-1],
        SCALES=key_scales.shape[3:].numel(),
        WIDTH=width,
        COLUMNS=max(MIN_ROWS, triton.next_power_of_2(width)),
        STAGES=stages(width),
        num_warps=ENCODE_WARPS,
        enable_fp_fusion=False,  # see `encode_vector`
    )


class _Launch(NamedTuple):
    """A kernel that attends to splits, its arguments before `rows`, those that the other kernel lacks, and COLUMNS."""

    kernel: Any
    operands: tuple[Any, ...]
    others: dict[str, Any]
    columns: int
    rotation: Rotation


def attend(step: Step, reading: Reading, cut: Tiling) -> OutAndLse:
    """Attend to the entries of the reading. If they are plain, write the new token first, if there is one."""
    form, (rows, heads, queries, width), padded = FORMS.get(step.slots.encoding), step.q.shape, padded_tile(step)
    parts, blocks = empty_parts(step.q, cut.splits), triton.cdiv(queries, padded.rows)
    launch = _of_plain(step, padded) if form is None else _of_encoded(step, form, padded)
    launch.kernel[cut.splits, heads * blocks, rows](
        *launch.operands,
        step.rows,
        reading.index,
        parts,
        step.scale * LOG2_E,
        queries,
        READ=reading.functions,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=launch.columns,
        BLOCK=cut.block,
        **launch.others,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(step.q, parts, step.rows, cut, launch.rotation, reading)


def _of_plain(step: Step, padded: Tile) -> _Launch:
    operands = strided(step.q, 3), new_rows(step.k, step.v), planes_of(*step.slots.planes)
    return _Launch(attend_split, operands, {"UPCAST": not step.q.is_cuda}, padded.columns, UNROTATED)


def _of_encoded(step: Step, form: Form, padded: Tile) -> _Launch:
    q, width = step.q, step.q.shape[3]
    keys, key_ranges, values, value_ranges = step.slots.planes
    dtype = torch.float16 if q.element_size() == 2 else torch.float32  # float16 has every element of the encodings
    rotation = Rotation.of_keys(width)
    operands = (
        rotated_queries(step, dtype, tile(q).rows, rotation),
        planes_of(keys.view(WORD), key_ranges.view(form.ranges)),
        planes_of(values.view(WORD), value_ranges.view(form.ranges)),
    )
    others = {"CODE": form.code, "EXACT": step.centers.shape[-1] // width - 1, "PACKED": q.is_cuda}
    return _Launch(attend_words, operands, others, max(MIN_ROWS, padded.columns // form.code.parts), rotation)


def usual_tiling(step: Step, capacity: int) -> Tiling:
    """Return the default tiling for heads of so many entries."""
    (rows, heads, queries, _), padded, on = step.q.shape, padded_tile(step), chip(step.q.device)
    form, programs = FORMS.get(step.slots.encoding), rows * heads * triton.cdiv(queries, padded.rows)
    if form is None:
        return tiling(programs, capacity, padded, on)
    return split(_program(form, padded), programs, capacity, padded, on)


def _program(form: Form, padded: Tile) -> Tiling:
    """Return how one program processes a split of encoded entries."""
    if padded.itemsize == torch.float32.itemsize:
        return FLOAT32
    warps = 1 if padded.rows * max(1, padded.columns // 128) <= ONE_WARP else MORE_WARPS
    return Tiling(1, min(ENTRIES, warps * MOST_ELEMENTS // padded.columns), warps, form.pipeline)


def padded_tile(step: Step) -> Tile:
    """Return the tile of queries of one program, and the bytes of the encoded entries that it loads."""
    plain, form = tile(step.q), FORMS.get(step.slots.encoding)
    if form is None:
        return plain
    rows, ranges = max(LEAST_ROWS, triton.next_power_of_2(step.q.shape[2])), step.slots.planes[-1]
    columns = max(MIN_ROWS, plain.columns // form.code.parts)
    range_bytes = ranges.element_size() * ranges.shape[3:].numel()
    return replace(plain, rows=min(rows, plain.rows), stored=columns * WORD.itemsize + range_bytes)
