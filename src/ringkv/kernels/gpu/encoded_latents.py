"""Decode attention over encoded latents on CUDA: four Triton kernels, whose launch does not depend on the lengths.

The first writes the step's latents. The second rotates queries by groups, as latents are. The third attends to one
split: it decodes a tile of entries, to multiply it as key and as value. The fourth merges the splits.

B rows of a step, S slots, G query heads, C entries, D elements of a latent, E first latents that are exact. A row's
result depends only on its slot's length and on fixed shapes, not on its neighbours.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.kernels.gpu import latent_attend as plain
from ringkv.kernels.gpu.decode_attend import LOG2_E, MERGE_STEP, MIN_ROWS, Attended, empty_parts
from ringkv.kernels.gpu.decode_attend import tile as columns_of
from ringkv.kernels.gpu.encoded_attend import ENCODE_WARPS, head_strides, rotated_queries
from ringkv.kernels.gpu.encoded_latent_split import encoded_latent_split
from ringkv.kernels.gpu.forms import WORD
from ringkv.kernels.gpu.latent_forms import LatentForm
from ringkv.kernels.gpu.merge_latents import merge_latents
from ringkv.kernels.gpu.rotation import Rotation
from ringkv.kernels.gpu.tiling import Tile, Tiling, chip, split
from ringkv.kernels.gpu.write_latent import write_latent

ROTATED_ELEMENTS = 4096  # of the queries of one program, in registers
STEP = {16: Tiling(1, 32, 4, 3), 32: Tiling(1, 32, 8, 3), 64: Tiling(1, 64, 8, 2)}  # by queries of one program
FLOAT32 = Tiling(1, 16, 8, 2)  # does not use tensor cores


class LatentPlanes(NamedTuple):
    """The tensors of slots. All but the centers change in place."""

    latents: Tensor  # [S, 1, C, bytes]
    scales: Tensor  # [S, 1, C, groups] or [S, 1, C, groups, n]
    centers: Tensor  # float32 [S, 1, D + E D], see `EncodedPlanes`


def decode_attend(
    latent: LatentForm,
    q: Tensor,
    k: Tensor,
    planes: LatentPlanes,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """See `kernels.encoded_latents`, whose reference is the contract. `cut` replaces `usual_tiling`.

    q [B, 1, G, D], k [B, 1, D]. The planes may be views of larger tensors if each slot's entries are contiguous.
    """
    write(latent, k, planes, slot, entry, live)
    return attend(latent, q, planes, slot, live, scale, cut)


def write(latent: LatentForm, k: Tensor, planes: LatentPlanes, slot: Tensor, entry: Tensor, live: Tensor) -> None:
    """Encode k [B, 1, D] and write it at `entry` of the slots of rows with live entries."""
    (rows, _, width), (form, latents, scales) = k.shape, (latent.form, planes.latents, planes.scales)
    rotation = Rotation.of_latents(form, latent.order, width)
    k, latents = k if k.stride(-1) == 1 else k.contiguous(), latents.view(form.stored)
    write_latent[triton.cdiv(width, LATENT_GROUP), rows](
        k,
        latents,
        scales,
        planes.centers,
        slot,
        entry,
        live,
        k.stride(0),
        head_strides(latents)[0],
        head_strides(scales)[0],
        head_strides(planes.centers)[0],
        STORE=form.store_key,
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


def attend(
    latent: LatentForm,
    q: Tensor,
    planes: LatentPlanes,
    slot: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """Attend with q [B, 1, G, D] to the live entries, all of which are written."""
    cut = cut or usual_tiling(q, planes)
    (rows, _, groups, width), padded = q.shape, encoded_tile(q, planes)
    rotation, columns = Rotation.of_latents(latent.form, latent.order, width), columns_of(q).columns
    few = max(1, ROTATED_ELEMENTS // columns)
    rotated, dots = rotated_queries(q, planes.centers, slot, live, q.dtype, few, rotation)
    part, part_lse = empty_parts(q, cut)
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)
    latents, ranges = planes.latents.view(WORD), planes.scales.view(latent.form.key_range)
    first, rest = plain.parts(width)
    exact = planes.centers.shape[-1] // width - 1
    center_slot = head_strides(planes.centers)[0]
    encoded_latent_split[cut.splits, triton.cdiv(groups, padded.rows), rows](
        rotated,
        dots,
        latents,
        ranges,
        planes.centers,
        slot,
        live,
        part,
        part_lse,
        head_strides(latents)[0],
        head_strides(ranges)[0],
        center_slot,
        scale * LOG2_E,
        groups,
        cut.splits,
        ROWS=padded.rows,
        WIDTH=width,
        FIRST=first,
        REST=rest,
        EXACT=exact,
        BLOCK=cut.block,
        TILE=latent.tile,
        PACKED=latents.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    merge_latents[groups, rows](
        part,
        part_lse,
        dots,
        planes.centers,
        slot,
        live,
        out,
        lse,
        center_slot,
        scale * LOG2_E,
        groups,
        cut.splits,
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


def usual_tiling(q: Tensor, planes: LatentPlanes) -> Tiling:
    """Return the default tiling of a step for q [B, 1, G, D]."""
    padded = encoded_tile(q, planes)
    one = FLOAT32 if padded.itemsize == torch.float32.itemsize else STEP[padded.rows]
    programs = q.shape[0] * triton.cdiv(q.shape[2], padded.rows)
    return split(one, programs, planes.latents.shape[2], padded, chip(planes.latents.device))


def encoded_tile(q: Tensor, planes: LatentPlanes) -> Tile:
    """Return the tile of queries of one program, and the bytes of the entries that it loads."""
    stored = sum(plane.element_size() * plane.shape[3:].numel() for plane in (planes.latents, planes.scales))
    return replace(plain.tile(q), stored=stored, is_decoded=True)
