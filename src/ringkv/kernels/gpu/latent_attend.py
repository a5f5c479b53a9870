# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention over latents on CUDA, in Triton. An entry is key and value, so a tile of entries is read once for both.

A step's launches do not depend on lengths. Plain latents have two kernels: the first writes the step's latents and
attends to one split, new token included, and the second merges. Encoded ones have two more, which write the latents,
and rotate queries by groups, as latents are. A tile of them is decoded to be multiplied as key and as value.

B rows of a step, S slots, G or Q query heads, C entries, D elements of an entry, E first latents that are exact, which
`merge_splits` adds, T tokens of a piece. A row's result depends only on its slot's length and on fixed shapes, not on
its neighbours.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.kernels.gpu.entries import ENCODE_WARPS
from ringkv.kernels.gpu.forms import FORMS, WORD, Form
from ringkv.kernels.gpu.hadamard import UNROTATED, Rotation
from ringkv.kernels.gpu.latent_tiles import attend_latents, exact_bits, no_latents, plain_tile, store_latent_part
from ringkv.kernels.gpu.rotate_queries import rotated_queries
from ringkv.kernels.gpu.splits import LN_2, LOG2_E, OutAndLse, empty_parts, merged
from ringkv.kernels.gpu.step import Step, Strided, planes_of, strided
from ringkv.kernels.gpu.tiles import entries_per_split
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


@triton.jit(do_not_specialize=["queries"])
def latent_split(
    q,  # [B, 1, Q, D], with the strides of a row and a query; if latents are encoded, as `rotate_queries` wrote them
    dots_at,  # as `rotate_queries` wrote them; None: latents are plain
    new,  # [B, 1, D], with the stride of a row; None: latents are encoded
    planes,  # latents [S, 1, C, ...] and, as TILE takes them, their ranges; each with the stride of a slot
    centers,  # float32 [S, 1, D + E D], with the stride of a slot; None: latents are plain
    rows,
    parts,  # as `store_latent_part` writes them
    scale,  # times log2(e)
    queries,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,  # of `latent_tiles`
    PACKED: tl.constexpr,  # as on a device: Triton's interpreter cannot multiply bfloat16
):
    split, block, row, splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(0)
    live = tl.load(rows.live + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    q_at, q_row, q_query = q
    slot = tl.load(rows.slot + row).to(tl.int64)  # beyond 2**31 elements in a large cache
    query, column, rest = block * ROWS + tl.arange(0, ROWS), tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    is_query, is_rest = query < queries, rest < WIDTH
    of_query = q_at + row * q_row + query[:, None] * q_query
    q_first = tl.load(of_query + column[None, :], mask=is_query[:, None], other=0.0)
    q_rest = tl.load(of_query + rest[None, :], mask=is_query[:, None] & is_rest[None, :], other=0.0)
    if not PACKED:
        q_first, q_rest = q_first.to(tl.float32), q_rest.to(tl.float32)
    latents = planes[0][0] + slot * planes[0][1]
    if new is None:
        ranges, newest = planes[1][0] + slot * planes[1][1], -1
        exact = exact_bits(centers[0] + slot * centers[1] + WIDTH, WIDTH, EXACT)
        largest = tl.load(dots_at + (row * queries + query) * (2 + EXACT), mask=is_query, other=0.0)
        factor = (largest * scale)[:, None]
        softmax = no_latents(ROWS, FIRST, REST)
    else:
        # The first split adds the new token to the softmax and writes it to the cache. All tiles skip its entry, so
        # that no program reads it while it is written, or multiplies by its old content, which may be NaN.
        ranges, exact, factor, newest = None, None, scale, tl.load(rows.entry + row)
        new_first = tl.load(new[0] + row * new[1] + column)
        new_rest = tl.load(new[0] + row * new[1] + rest, mask=is_rest, other=0.0)
        is_first = split == 0
        is_written = is_first & (block == 0)
        tl.store(latents + newest * WIDTH + column, new_first, mask=(column < FIRST) & is_written)
        tl.store(latents + newest * WIDTH + rest, new_rest, mask=is_rest & is_written)
        new_first, new_rest = new_first.to(tl.float32)[None, :], new_rest.to(tl.float32)[None, :]
        score = tl.sum(q_first.to(tl.float32) * new_first, 1) + tl.sum(q_rest.to(tl.float32) * new_rest, 1)
        top = tl.where(is_first, score * scale, float("-inf"))
        total = tl.where(is_first, tl.full((ROWS,), 1.0, tl.float32), 0.0)
        acc_first = tl.where(is_first, tl.zeros((ROWS, FIRST), tl.float32) + new_first, 0.0)
        acc_rest = tl.where(is_first, tl.zeros((ROWS, REST), tl.float32) + new_rest, 0.0)
        softmax = top, total, acc_first, acc_rest
    DTYPE: tl.constexpr = q_at.dtype.element_ty
    q = q_first, q_rest
    softmax = attend_latents(
        q, latents, ranges, first, stop, newest, exact, None, softmax, factor, WIDTH, BLOCK, TILE, DTYPE, PACKED
    )
    at = (row.to(tl.int64) * splits + split) * queries + query  # beyond 2**31 elements with many slots
    store_latent_part(parts, at, is_query, softmax, WIDTH, FIRST, REST)


@triton.jit(do_not_specialize=["tokens", "groups", "start"])
def latent_prefill(
    q_at,  # [T, G, D]
    latents_at,  # [start + T, D]
    out_at,  # [T, G, D]
    lse_at,  # float32 [T, G], natural
    scale,  # times log2(e)
    tokens,
    groups,
    start,  # place of the first token in the prompt
    ROWS: tl.constexpr,  # queries of one program
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    """Attend causally with a chunk of a prompt to its latents.

    Queries of neighbouring tokens and of all heads share a program's tile, because they attend to the same entries.
    """
    # Late tokens see most entries, so their programs start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    query, column, rest = block * ROWS + tl.arange(0, ROWS), tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    is_query = query < tokens * groups
    real_rest = is_query[:, None] & (rest < WIDTH)[None, :]
    place = query[:, None] * WIDTH
    q_first = tl.load(q_at + place + column[None, :], mask=is_query[:, None], other=0.0)
    q_rest = tl.load(q_at + place + rest[None, :], mask=real_rest, other=0.0)
    if UPCAST:
        q_first, q_rest = q_first.to(tl.float32), q_rest.to(tl.float32)
    last = start + query // groups
    stop = tl.minimum(start + (block * ROWS + ROWS - 1) // groups, start + tokens - 1) + 1
    DTYPE: tl.constexpr = latents_at.dtype.element_ty
    q, softmax = (q_first, q_rest), no_latents(ROWS, FIRST, REST)
    top, total, acc_first, acc_rest = attend_latents(
        q, latents_at, None, 0, stop, -1, None, last, softmax, scale, WIDTH, BLOCK, plain_tile, DTYPE, False
    )
    out = out_at + place
    tl.store(out + column[None, :], (acc_first / total[:, None]).to(out_at.dtype.element_ty), mask=is_query[:, None])
    tl.store(out + rest[None, :], (acc_rest / total[:, None]).to(out_at.dtype.element_ty), mask=real_rest)
    tl.store(lse_at + query, (top + tl.log2(total)) * LN_2, mask=is_query)
