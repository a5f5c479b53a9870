"""Decode attention over encoded keys and values on CUDA: four Triton kernels whose launch does not depend on lengths.

The first writes the new token. The second rotates the queries. The third attends to one split, and the last merges.

B rows of a step, S slots, H key-value heads, G query heads each, C entries, D head_dim, E first keys that are exact. A
row's result depends only on its slot's length and on fixed shapes, not on its neighbours.
"""

from dataclasses import replace

import torch
import triton
from torch import Tensor

from ringkv.kernels.encoded_attend import EncodedPlanes
from ringkv.kernels.gpu.decode_attend import LOG2_E, MIN_ROWS, Attended, empty_parts, merged, tile
from ringkv.kernels.gpu.forms import WORD, Form
from ringkv.kernels.gpu.rotate_queries import rotate_queries
from ringkv.kernels.gpu.rotation import Rotation
from ringkv.kernels.gpu.tiling import Tile, Tiling, chip, split
from ringkv.kernels.gpu.write_token import write_token

LEAST_ROWS = 8  # queries of one program
ENTRIES, MOST_ELEMENTS = 64, 8192  # of a tile, by warp: they are in registers
ONE_WARP, MORE_WARPS = 16, 4  # queries of at most 128 elements that one warp can process; warps for more
FLOAT32 = Tiling(1, 16, 8, 2)  # does not use tensor cores
ENCODE_WARPS, ROTATE_WARPS = 1, 4


def decode_attend(
    form: Form,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    planes: EncodedPlanes,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """See `kernels.encoded_attend`, whose reference is the contract. `cut` replaces `usual_tiling`.

    The planes may be views of larger tensors if each head's entries are contiguous.
    """
    if k is not None and v is not None:
        write(form, k, v, planes, slot, entry, live)
    return attend(form, q, planes, slot, live, scale, cut)


def write(form: Form, k: Tensor, v: Tensor, planes: EncodedPlanes, slot: Tensor, entry: Tensor, live: Tensor) -> None:
    """Encode k, v [B, H, D] and write them at `entry` of the slots of rows with live entries."""
    (rows, heads, width), (_, key_scales, _, value_scales, centers) = k.shape, planes
    k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (k, v))
    keys, values = planes.keys.view(form.stored), planes.values.view(form.stored)
    write_token[heads, rows](
        k,
        v,
        keys,
        key_scales,
        values,
        value_scales,
        centers,
        slot,
        entry,
        live,
        *k.stride()[:2],
        *v.stride()[:2],
        *_plane_strides(keys, values),
        *head_strides(key_scales),
        *head_strides(value_scales),
        *head_strides(centers),
        STORE_KEY=form.store_key,
        STORE_VALUE=form.store_value,
        WIDTH=width,
        COLUMNS=max(MIN_ROWS, triton.next_power_of_2(width)),
        STAGES=form.stages(width),
        num_warps=ENCODE_WARPS,
        enable_fp_fusion=False,  # see `encode_vector`
    )


def attend(
    form: Form,
    q: Tensor,
    planes: EncodedPlanes,
    slot: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """Attend with q [B, H, Q, D] to the live entries, all of which are written."""
    cut = cut or usual_tiling(form, q, planes)
    (rows, heads, queries, width), padded = q.shape, encoded_tile(form, q, planes)
    exact = planes.centers.shape[-1] // width - 1
    dtype = torch.float16 if q.element_size() == 2 else torch.float32  # float16 has every element of the formats
    rotation, rows_of_program = Rotation.of_keys(form, width), tile(q).rows
    rotated, dots = rotated_queries(q, planes.centers, slot, live, dtype, rows_of_program, rotation)
    part, part_lse = empty_parts(q, cut)
    blocks = triton.cdiv(queries, padded.rows)
    keys, values = planes.keys.view(WORD), planes.values.view(WORD)
    key_scales, value_scales = planes.key_scales.view(form.key_range), planes.value_scales.view(form.value_range)
    columns = max(MIN_ROWS, padded.columns // form.per_word)
    form.attend[cut.splits, heads * blocks, rows](
        rotated,
        dots,
        keys,
        key_scales,
        values,
        value_scales,
        slot,
        live,
        part,
        part_lse,
        *_plane_strides(keys, values),
        *head_strides(key_scales),
        *head_strides(value_scales),
        scale * LOG2_E,
        heads,
        queries,
        cut.splits,
        blocks,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=columns,
        EXACT=exact,
        BLOCK=cut.block,
        PACKED=keys.is_cuda,
        **form.constants,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(q, part, part_lse, live, cut, form.stages(width))


def rotated_queries(
    q: Tensor, centers: Tensor, slot: Tensor, live: Tensor, dtype: torch.dtype, rows: int, rotation: Rotation
) -> tuple[Tensor, Tensor]:
    """Return what `rotate_queries` writes in this dtype, with so many queries of a program."""
    (batch, heads, queries, width), columns = q.shape, tile(q).columns
    centers_of_head = centers.shape[-1] // width
    q = q if q.stride(-1) == 1 else q.contiguous()
    rotated = q.new_empty(q.shape, dtype=dtype)
    dots = q.new_empty(batch, heads, queries, 1 + centers_of_head, dtype=torch.float32)
    rotate_queries[triton.cdiv(queries, rows), heads, batch](
        q,
        centers,
        slot,
        live,
        rotated,
        dots,
        *q.stride()[:3],
        *head_strides(centers),
        heads,
        queries,
        ROWS=rows,
        WIDTH=width,
        COLUMNS=columns,
        WHOLE=rotation.whole,
        WHOLE_STAGES=rotation.whole_stages,
        STAGES=rotation.stages,
        ORDER=rotation.order,
        CENTERS=centers_of_head,
        SIGNED=rotation.is_signed,
        num_warps=ROTATE_WARPS,
    )
    return rotated, dots


def usual_tiling(form: Form, q: Tensor, planes: EncodedPlanes) -> Tiling:
    """Return the default tiling for q [B, H, Q, D]."""
    keys, padded = planes.keys, encoded_tile(form, q, planes)
    programs = q.shape[0] * q.shape[1] * triton.cdiv(q.shape[2], padded.rows)
    return split(_program(form, padded), programs, keys.shape[2], padded, chip(keys.device))


def _program(form: Form, padded: Tile) -> Tiling:
    """Return how one program processes a split."""
    if padded.itemsize == torch.float32.itemsize:
        return FLOAT32
    warps = 1 if padded.rows * max(1, padded.columns // 128) <= ONE_WARP else MORE_WARPS
    return Tiling(1, min(ENTRIES, warps * MOST_ELEMENTS // padded.columns), warps, form.pipeline)


def encoded_tile(form: Form, q: Tensor, planes: EncodedPlanes) -> Tile:
    """Return the tile of queries of one program, and the bytes of the entries that it loads."""
    plain, rows = tile(q), max(LEAST_ROWS, triton.next_power_of_2(q.shape[2]))
    columns = max(MIN_ROWS, plain.columns // form.per_word)
    range_bytes = planes.value_scales.element_size() * planes.value_scales.shape[3:].numel()
    return replace(plain, rows=min(rows, plain.rows), stored=columns * WORD.itemsize + range_bytes)


def _plane_strides(keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """Return the strides of a slot and of a head, which both planes have."""
    assert keys.stride() == values.stride()
    return head_strides(keys)


def head_strides(plane: Tensor) -> tuple[int, ...]:
    """Return the strides of a slot and of a head, whose entries are contiguous."""
    assert (plane.stride(2), plane.stride(-1)) == (plane.shape[3:].numel(), 1)
    return plane.stride()[:2]
