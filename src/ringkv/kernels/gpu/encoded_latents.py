"""Decode attention over encoded latents on CUDA: four Triton kernels, whose launch does not depend on the lengths.

The first writes the step's latents. The second rotates queries by groups, as latents are. The third attends to one
split: it decodes a tile of entries, to multiply it as key and as value. The fourth merges the splits.

B rows of a step, S slots, Q query heads, C entries, D elements of a latent. A row's result depends only on its slot's
length and on fixed shapes, not on its neighbours.
"""

from dataclasses import replace

import torch
import triton

from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.kernels.gpu import latent_attend
from ringkv.kernels.gpu.encoded_attend import ENCODE_WARPS, Rotation, centers, rotated_queries
from ringkv.kernels.gpu.forms import FORMS, WORD
from ringkv.kernels.gpu.latent_attend import latent_plane
from ringkv.kernels.gpu.latent_split import latent_split
from ringkv.kernels.gpu.merge_latents import merge_latents
from ringkv.kernels.gpu.readings import EVERY
from ringkv.kernels.gpu.splits import LOG2_E, MERGE_STEP, OutAndLse, empty_parts
from ringkv.kernels.gpu.step import Step, strided
from ringkv.kernels.gpu.tiling import MIN_ROWS, Tile, Tiling, chip, split, tile
from ringkv.kernels.gpu.write_token import write_latent

ROTATED_ELEMENTS = 4096  # of the queries of one program, in registers
STEP = {16: Tiling(1, 32, 4, 3), 32: Tiling(1, 32, 8, 3), 64: Tiling(1, 64, 8, 2)}  # by queries of one program
FLOAT32 = Tiling(1, 16, 8, 2)  # does not use tensor cores


def decode_attend(step: Step, cut: Tiling | None) -> OutAndLse:
    """See `kernels.decode_attend`. `cut` replaces `usual_tiling`."""
    write(step)
    return attend(step, cut or usual_tiling(step))


def write(step: Step) -> None:
    """Encode k [B, 1, D] and write it at the entries of rows with live ones."""
    assert step.k is not None
    (rows, _, width), form, (latents, scales) = step.k.shape, FORMS[step.slots.encoding], step.slots.planes
    rotation, latents = Rotation.of_latents(form.order, width), latents.view(form.stored)
    write_latent[triton.cdiv(width, LATENT_GROUP), rows](
        strided(step.k, 1),
        (latent_plane(latents), latent_plane(scales)),
        strided(centers(step), 1),
        step.rows,
        STORE=form.store,
        PACK=width // latents.shape[-1],
        SCALES=scales.shape[4:].numel(),
        WIDTH=width,
        GROUP=LATENT_GROUP,
        LAST_COLUMNS=max(MIN_ROWS, triton.next_power_of_2(width - rotation.whole)),
        WHOLE_STAGES=rotation.whole_stages,
        STAGES=rotation.stages,
        num_warps=ENCODE_WARPS,
        enable_fp_fusion=False,  # see `encode_vector`
    )


def attend(step: Step, cut: Tiling) -> OutAndLse:
    """Attend with q [B, 1, Q, D] to the live entries, all of which are written."""
    q, (rows, _, queries, width), padded = step.q, step.q.shape, encoded_tile(step)
    form, columns = FORMS[step.slots.encoding], tile(q).columns
    rotation, few = Rotation.of_latents(form.order, width), max(1, ROTATED_ELEMENTS // columns)
    rotated, dots = rotated_queries(step, q.dtype, few, rotation)
    parts, (latents, ranges) = empty_parts(q, cut.splits), step.slots.planes
    first, rest = latent_attend.widths(width)
    exact = centers(step).shape[-1] // width - 1
    latent_split[cut.splits, triton.cdiv(queries, padded.rows), rows](
        (rotated, rotated.stride(0), rotated.stride(2)),
        dots,
        None,
        (latent_plane(latents.view(WORD)), latent_plane(ranges.view(form.ranges))),
        strided(centers(step), 1),
        step.rows,
        parts,
        step.scale * LOG2_E,
        queries,
        ROWS=padded.rows,
        WIDTH=width,
        FIRST=first,
        REST=rest,
        EXACT=exact,
        BLOCK=cut.block,
        TILE=form.tile,
        PACKED=latents.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)
    merge_latents[queries, rows](
        parts,
        dots,
        strided(centers(step), 1),
        step.rows,
        out,
        lse,
        step.scale * LOG2_E,
        cut.splits,
        READ=EVERY.functions,
        WIDTH=width,
        COLUMNS=columns,
        BLOCK=cut.block,
        STEP=MERGE_STEP,
        WHOLE=rotation.whole,
        WHOLE_STAGES=rotation.whole_stages,
        STAGES=rotation.stages,
        ORDER=rotation.order,
        EXACT=exact,
        num_warps=max(2, columns // 128),
    )
    return out, lse


def usual_tiling(step: Step) -> Tiling:
    """Return the default tiling of a step."""
    q, latents, padded = step.q, step.slots.planes[0], encoded_tile(step)
    program = FLOAT32 if padded.itemsize == torch.float32.itemsize else STEP[padded.rows]
    programs = q.shape[0] * triton.cdiv(q.shape[2], padded.rows)
    return split(program, programs, latents.shape[2], padded, chip(latents.device))


def encoded_tile(step: Step) -> Tile:
    """Return the tile of queries of one program, and the bytes of the entries that it loads."""
    stored = sum(plane.element_size() * plane.shape[3:].numel() for plane in step.slots.planes)
    return replace(latent_attend.tile(step.q), stored=stored, is_decoded=True)
