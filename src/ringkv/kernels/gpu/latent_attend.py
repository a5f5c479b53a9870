"""Attention over latents on CUDA, in Triton. An entry is key and value, so a tile of entries is read once for both.

B rows of a step, T tokens of a piece, S slots, G query heads, C entries, D elements of an entry.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.latent_split import latent_prefill, latent_split
from ringkv.kernels.gpu.latent_tiles import plain_tile
from ringkv.kernels.gpu.splits import LOG2_E, OutAndLse, empty_parts, merged
from ringkv.kernels.gpu.step import Step, Strided, planes_of, strided
from ringkv.kernels.gpu.tiling import MIN_ROWS, Chip, Tile, Tiling, chip, split, tiling


class Program(NamedTuple):
    """The most queries of one program, whose results stay in registers, and how it reads entries."""

    queries: int
    cut: Tiling


AMPERE, HOPPER = Program(32, Tiling(1, 32, 4, 3)), Program(64, Tiling(1, 64, 8, 2))
STEP = {8: AMPERE, 9: HOPPER, 10: Program(32, Tiling(1, 32, 8, 3))}  # by compute capability
PREFILL = {8: AMPERE, 9: HOPPER, 10: Program(64, Tiling(1, 32, 8, 2))}
FLOAT32 = Program(MIN_ROWS, Tiling(1, 16, 8, 2))


def decode_attend(step: Step, cut: Tiling | None) -> OutAndLse:
    """See `kernels.decode_attend`, of plain latents [S, 1, C, D]. `cut` replaces `usual_tiling`."""
    (latents,), q, k = step.slots.planes, step.q, step.k
    assert k is not None
    cut = cut or usual_tiling(q, latents)
    (rows, _, queries, width), padded = q.shape, tile(q)
    parts = empty_parts(q, cut.splits)
    first, rest = widths(width)
    latent_split[cut.splits, triton.cdiv(queries, padded.rows), rows](
        (q, q.stride(0), q.stride(2)),
        None,
        strided(k, 1),
        (latent_plane(latents),),
        None,
        step.rows,
        parts,
        step.scale * LOG2_E,
        queries,
        ROWS=padded.rows,
        WIDTH=width,
        FIRST=first,
        REST=rest,
        EXACT=0,
        BLOCK=cut.block,
        TILE=plain_tile,
        PACKED=latents.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return merged(q, parts, step.rows, cut)


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


def usual_tiling(q: Tensor, latents: Tensor) -> Tiling:
    """Return the default tiling of a step for q [B, 1, G, D] and latents [S, 1, C, D]."""
    padded, on = tile(q), chip(latents.device)
    programs = q.shape[0] * triton.cdiv(q.shape[2], padded.rows)
    if padded.rows == MIN_ROWS:
        return tiling(programs, latents.shape[2], padded, on)
    usual = STEP.get(on.major, AMPERE)
    cut = usual.cut if padded.rows == usual.queries else AMPERE.cut
    return split(cut, programs, latents.shape[2], padded, on)


def tile(q: Tensor) -> Tile:
    """Return the tile of queries [B, 1, G, D] that one program processes."""
    most = FLOAT32 if q.element_size() > 2 else STEP.get(chip(q.device).major, AMPERE)
    rows = max(MIN_ROWS, min(most.queries, triton.next_power_of_2(q.shape[2])))
    return Tile(rows, sum(widths(q.shape[3])), q.element_size(), planes=1)


def widths(width: int) -> tuple[int, int]:
    """Divide an entry's elements in the largest power of two below their number, and the rest, padded to one."""
    first: int = triton.next_power_of_2(width) // 2
    return first, max(MIN_ROWS, triton.next_power_of_2(width - first))
