"""Decode attention over encoded entries on CUDA: four Triton kernels whose launch does not depend on lengths.

The first writes the new token. The second rotates the queries. The third attends to one split, and the last merges.

B rows of a step, S slots, H key-value heads, Q queries of each, D elements of a vector. A row's result depends only on
its slot's length and on fixed shapes, not on its neighbours.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.kernels.gpu.attend_words import attend_words
from ringkv.kernels.gpu.forms import FORMS, WORD, Form
from ringkv.kernels.gpu.hadamard import stages
from ringkv.kernels.gpu.nibbles import in_order
from ringkv.kernels.gpu.readings import Reading
from ringkv.kernels.gpu.rotate_queries import rotate_queries
from ringkv.kernels.gpu.splits import LOG2_E, OutAndLse, empty_parts, merged
from ringkv.kernels.gpu.step import Step, new_rows, planes_of, strided
from ringkv.kernels.gpu.tiling import MIN_ROWS, Tile, Tiling, chip, split, tile
from ringkv.kernels.gpu.write_token import write_token

LEAST_ROWS = 8  # queries of one program
ENTRIES, MOST_ELEMENTS = 64, 8192  # of a tile, by warp: they are in registers
ONE_WARP, MORE_WARPS = 16, 4  # queries of at most 128 elements that one warp can process; warps for more
FLOAT32 = Tiling(1, 16, 8, 2)  # does not use tensor cores
ENCODE_WARPS, ROTATE_WARPS = 1, 4


@dataclass(frozen=True)
class Rotation:
    """Groups of elements, each of which is rotated alone.

    whole: elements in whole groups, before the last group. stages, whole_stages: of the rotation of the last group, and
    of a whole one. order: see `nibbles`.
    """

    stages: int
    whole_stages: int
    whole: int = 0
    order: Any = in_order

    @classmethod
    def of_keys(cls, width: int) -> "Rotation":
        """Return that of a head's keys of so many elements, which are a single group."""
        return cls(stages(width), stages(width))

    @classmethod
    def of_latents(cls, order: Any, width: int) -> "Rotation":
        whole = (width - 1) // LATENT_GROUP * LATENT_GROUP
        last = stages(width - whole)
        return cls(last, stages(LATENT_GROUP) if whole else last, whole, order)


def write(step: Step, reading: Reading) -> None:
    """Encode the new token and write it to the slots of rows with live entries."""
    assert step.k is not None
    form, (rows, heads, width) = FORMS[step.slots.encoding], step.k.shape
    keys, key_scales, values, value_scales = step.slots.planes
    keys, values = keys.view(form.stored), values.view(form.stored)
    write_token[heads, rows](
        new_rows(step.k, step.v),
        planes_of(keys, key_scales, values, value_scales),
        strided(centers(step), 2),
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


def attend(step: Step, reading: Reading, cut: Tiling) -> OutAndLse:
    """Attend to the entries of the reading, all of which are written."""
    form, q, (rows, heads, queries, width) = FORMS[step.slots.encoding], step.q, step.q.shape
    padded, keys, values = encoded_tile(step), *words(step)
    dtype = torch.float16 if q.element_size() == 2 else torch.float32  # float16 has every element of the encodings
    rotated = rotated_queries(step, dtype, tile(q).rows, Rotation.of_keys(width))
    parts, blocks = empty_parts(q, cut.splits), triton.cdiv(queries, padded.rows)
    attend_words[cut.splits, heads * blocks, rows](
        rotated,
        planes_of(*keys),
        planes_of(*values),
        step.rows,
        reading.index,
        parts,
        step.scale * LOG2_E,
        queries,
        READ=reading.functions,
        CODE=form.code,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=max(MIN_ROWS, padded.columns // form.code.parts),
        EXACT=centers(step).shape[-1] // width - 1,
        BLOCK=cut.block,
        PACKED=q.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(q, parts, step.rows, cut, stages(width), reading)


def words(step: Step) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return words and ranges of keys, and of values, as kernels load them."""
    form = FORMS[step.slots.encoding]
    keys, key_ranges, values, value_ranges = step.slots.planes
    return (keys.view(WORD), key_ranges.view(form.ranges)), (values.view(WORD), value_ranges.view(form.ranges))


def centers(step: Step) -> Tensor:
    assert step.slots.centers is not None
    return step.slots.centers


def rotated_queries(step: Step, dtype: torch.dtype, rows: int, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Return what `rotate_queries` writes in this dtype, with so many queries of a program."""
    (batch, heads, queries, width), columns = step.q.shape, tile(step.q).columns
    centers_of_head = centers(step).shape[-1] // width
    rotated = step.q.new_empty(step.q.shape, dtype=dtype)
    dots = step.q.new_empty(batch, heads, queries, 1 + centers_of_head, dtype=torch.float32)
    rotate_queries[triton.cdiv(queries, rows), heads, batch](
        strided(step.q, 3),
        strided(centers(step), 2),
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
        num_warps=ROTATE_WARPS,
    )
    return rotated, dots


def usual_tiling(step: Step, capacity: int) -> Tiling:
    """Return the default tiling for heads of so many entries."""
    q, padded = step.q, encoded_tile(step)
    programs = q.shape[0] * q.shape[1] * triton.cdiv(q.shape[2], padded.rows)
    return split(_program(FORMS[step.slots.encoding], padded), programs, capacity, padded, chip(q.device))


def _program(form: Form, padded: Tile) -> Tiling:
    """Return how one program processes a split."""
    if padded.itemsize == torch.float32.itemsize:
        return FLOAT32
    warps = 1 if padded.rows * max(1, padded.columns // 128) <= ONE_WARP else MORE_WARPS
    return Tiling(1, min(ENTRIES, warps * MOST_ELEMENTS // padded.columns), warps, form.pipeline)


def encoded_tile(step: Step) -> Tile:
    """Return the tile of queries of one program, and the bytes of the entries that it loads."""
    plain, rows = tile(step.q), max(LEAST_ROWS, triton.next_power_of_2(step.q.shape[2]))
    form, ranges = FORMS[step.slots.encoding], step.slots.planes[-1]
    columns = max(MIN_ROWS, plain.columns // form.code.parts)
    range_bytes = ranges.element_size() * ranges.shape[3:].numel()
    return replace(plain, rows=min(rows, plain.rows), stored=columns * WORD.itemsize + range_bytes)
