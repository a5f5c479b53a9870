"""Attention over latents on CUDA, in Triton. An entry is key and value, so a tile of entries is read once for both.

A step's launches do not depend on lengths. Plain latents have two kernels: the first writes the step's latents and
attends to one split, and the second merges. Encoded ones have two more, which write the latents, and rotate queries by
groups, as latents are. A tile of them is decoded to be multiplied as key and as value.

B rows of a step, T tokens of a piece, S slots, G query heads, C entries, D elements of an entry. A row's result depends
only on its slot's length and on fixed shapes, not on its neighbours.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.kernels.gpu.entries import ENCODE_WARPS
from ringkv.kernels.gpu.forms import FORMS, WORD, Form
from ringkv.kernels.gpu.hadamard import UNROTATED, Rotation
from ringkv.kernels.gpu.latent_split import latent_prefill, latent_split
from ringkv.kernels.gpu.latent_tiles import plain_tile
from ringkv.kernels.gpu.rotate_queries import rotated_queries
from ringkv.kernels.gpu.splits import LOG2_E, OutAndLse, empty_parts, merged
from ringkv.kernels.gpu.step import Step, Strided, planes_of, strided
from ringkv.kernels.gpu.tiling import MIN_ROWS, Chip, Tile, Tiling, chip, split, tiling
from ringkv.kernels.gpu.write_token import write_latent


class Program(NamedTuple):
    """The most queries of one program, whose results stay in registers, and how it reads entries."""

    queries: int
    cut: Tiling


AMPERE, HOPPER = Program(32, Tiling(1, 32, 4, 3)), Program(64, Tiling(1, 64, 8, 2))
STEP = {8: AMPERE, 9: HOPPER, 10: Program(32, Tiling(1, 32, 8, 3))}  # by compute capability
PREFILL = {8: AMPERE, 9: HOPPER, 10: Program(64, Tiling(1, 32, 8, 2))}
FLOAT32 = Program(MIN_ROWS, Tiling(1, 16, 8, 2))
DECODED = {16: Tiling(1, 32, 4, 3), 32: Tiling(1, 32, 8, 3), 64: Tiling(1, 64, 8, 2)}  # by queries of one program
ROTATED_ELEMENTS = 4096  # of the queries of one program, in registers


def decode_attend(step: Step, cut: Tiling | None) -> OutAndLse:
    """See `kernels.decode_attend`, of latents [S, 1, C, ...]. `cut` replaces `usual_tiling`."""
    form = FORMS.get(step.slots.encoding)
    if form is not None:
        write(step, form)
    return attend(step, form, cut or usual_tiling(step))


def write(step: Step, form: Form) -> None:
    """Encode k [B, 1, D] and write it at the entries of rows with live ones."""
    assert step.k is not None
    (rows, _, width), (latents, scales) = step.k.shape, step.slots.planes
    rotation, latents = Rotation.of_latents(form.order, width), latents.view(form.stored)
    write_latent[triton.cdiv(width, LATENT_GROUP), rows](
        strided(step.k, 1),
        (latent_plane(latents), latent_plane(scales)),
        strided(step.centers, 1),
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


def attend(step: Step, form: Form | None, cut: Tiling) -> OutAndLse:
    """Attend with q [B, 1, Q, D] to the live entries. Plain ones do not include the new one yet."""
    q, (rows, _, queries, width), padded = step.q, step.q.shape, tile(step)
    latents, *ranges = step.slots.planes
    rotation, load, encoded = UNROTATED, plain_tile, None
    operands: tuple[Any, ...]
    if form is None:
        assert step.k is not None
        operands = (q, q.stride(0), q.stride(2)), None, strided(step.k, 1), (latent_plane(latents),), None
    else:
        rotation, load = Rotation.of_latents(form.order, width), form.tile
        few = max(1, ROTATED_ELEMENTS // triton.next_power_of_2(width))
        rotated, dots = rotated_queries(step, q.dtype, few, rotation)
        planes = latent_plane(latents.view(WORD)), latent_plane(ranges[0].view(form.ranges))
        encoded = dots, strided(step.centers, 1)
        operands = (rotated, rotated.stride(0), rotated.stride(2)), dots, None, planes, encoded[1]
    parts, (first, rest) = empty_parts(q, cut.splits), widths(width)
    latent_split[cut.splits, triton.cdiv(queries, padded.rows), rows](
        *operands,
        step.rows,
        parts,
        step.scale * LOG2_E,
        queries,
        ROWS=padded.rows,
        WIDTH=width,
        FIRST=first,
        REST=rest,
        EXACT=encoded[0].shape[-1] - 2 if encoded else 0,
        BLOCK=cut.block,
        TILE=load,
        PACKED=latents.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(q, parts, step.rows, cut, rotation, latents=encoded, scale=step.scale)


def latent_plane(plane: Tensor) -> Strided:
    """Return a plane [S, 1, C, ...] with the stride of a slot, whose entries are contiguous."""
    ((tensor, of_slot, _),) = planes_of(plane)
    return tensor, of_slot


def prefill_latent(q: Tensor, latents: Tensor, start: int, scale: float) -> OutAndLse:
    """Return causal attention of q [T, 1, G, D], tokens from `start` on, to latents [start + T, D], and its lse."""
    tokens, _, groups, width = q.shape
    q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    first, rest = widths(width)
    rows, cut = prefill_tiling(q.element_size(), chip(q.device))
    latent_prefill[(triton.cdiv(tokens * groups, rows),)](
        q,
        latents.contiguous(),
        out,
        lse,
        scale * LOG2_E,
        tokens,
        groups,
        start,
        ROWS=rows,
        WIDTH=width,
        FIRST=first,
        REST=rest,
        BLOCK=cut.block,
        UPCAST=not latents.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out, lse


def prefill_tiling(itemsize: int, on: Chip) -> Program:
    """Return the queries of one program of a prefill, and how it reads entries."""
    return FLOAT32 if itemsize > 2 else PREFILL.get(on.major, AMPERE)


def usual_tiling(step: Step) -> Tiling:
    """Return the default tiling of a step."""
    padded, on, capacity = tile(step), chip(step.q.device), step.slots.planes[0].shape[2]
    programs, usual = step.q.shape[0] * triton.cdiv(step.q.shape[2], padded.rows), STEP.get(on.major, AMPERE)
    if padded.is_decoded:
        program = FLOAT32.cut if padded.itemsize == torch.float32.itemsize else DECODED[padded.rows]
        return split(program, programs, capacity, padded, on)
    if padded.rows == MIN_ROWS:
        return tiling(programs, capacity, padded, on)
    return split(usual.cut if padded.rows == usual.queries else AMPERE.cut, programs, capacity, padded, on)


def tile(step: Step) -> Tile:
    """Return the tile of queries of one program, and the bytes of the encoded entries that it loads."""
    q, planes = step.q, step.slots.planes
    most = FLOAT32 if q.element_size() > 2 else STEP.get(chip(q.device).major, AMPERE)
    rows = max(MIN_ROWS, min(most.queries, triton.next_power_of_2(q.shape[2])))
    plain = Tile(rows, sum(widths(q.shape[3])), q.element_size(), planes=1)
    if step.slots.encoding not in FORMS:
        return plain
    return replace(
        plain, stored=sum(plane.element_size() * plane.shape[3:].numel() for plane in planes), is_decoded=True
    )


def widths(width: int) -> tuple[int, int]:
    """Divide an entry's elements in the largest power of two below their number, and the rest, padded to one."""
    first: int = triton.next_power_of_2(width) // 2
    return first, max(MIN_ROWS, triton.next_power_of_2(width - first))
