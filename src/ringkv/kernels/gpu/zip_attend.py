"""Decode attention on CUDA over slots in the format zipcache: six Triton kernels, whose launches depend on no length.

They add the new token, attend to plain entries, to those in 4 bits and in 2, merge, and note what the buffer's keys
got.

B rows of a step, S slots, H key-value heads, G query heads each, D head_dim.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ringkv.base.zip_sizes import CHUNK
from ringkv.kernels.gpu.append_token import append_token
from ringkv.kernels.gpu.attend_buffer import attend_buffer, note_attention
from ringkv.kernels.gpu.attend_chunks import attend_chunks
from ringkv.kernels.gpu.codes import NIBBLES
from ringkv.kernels.gpu.entries import FLOAT32, LEAST_ROWS, MORE_WARPS, ONE_WARP
from ringkv.kernels.gpu.readings import ALL_SPLITS
from ringkv.kernels.gpu.splits import LOG2_E, OutAndLse, empty_parts, merged
from ringkv.kernels.gpu.step import Step, new_rows, strided
from ringkv.kernels.gpu.tiling import MIN_ROWS, Tile, Tiling, chip, split, tile
from ringkv.kernels.zip_codes import HIGH_BITS, LOW_BITS
from ringkv.kernels.zip_slots import ZipSlots

WORD, RANGE = torch.int16, torch.int32
HALF_BYTES = 2  # of a float16
BLOCK, PIPELINE = 64, 2  # entries of a tile: no less than a chunk has in as many bits
FEW_WARPS = 2  # of at most ONE_WARP queries
APPEND_WARPS, BUFFER_BLOCK = 8, 16
BUFFER_WARPS = {2: 1, 4: 8}  # by bytes of an element: float32 does not use tensor cores


class Cut(NamedTuple):
    """How the entries in 4 bits, and those in 2, are divided."""

    high: Tiling
    low: Tiling


class Part(NamedTuple):
    """Where results of some entries go: to splits from `first` on."""

    cut: Tiling
    first: int
    parts: OutAndLse


class Run(NamedTuple):
    """The entries of slots that have as many bits. first: of their values' ranges."""

    bits: int
    keys: Tensor
    values: Tensor
    first: int


def decode_attend(step: Step, cut: Tiling | None) -> OutAndLse:
    """See `kernels.decode_attend`, whose reference is the contract. `cut` replaces `usual_cut`.

    A head's part of each tensor of the slots is contiguous, and heads and slots follow each other.
    """
    slots = ZipSlots(*step.slots.planes)
    assert all(tensor.is_contiguous() for tensor in slots)
    append(step, slots)
    return attend(step, slots, Cut(cut, cut) if cut else usual_cut(step.q, slots))


def append(step: Step, slots: ZipSlots) -> None:
    """Add k, v [B, H, D] to the slots of rows with live tokens."""
    assert step.k is not None
    rows, heads, width = step.k.shape
    append_token[heads, rows](
        new_rows(step.k, step.v),
        *slots,
        step.rows,
        heads,
        slots.plain_keys.shape[2],
        slots.high_keys.shape[2],
        slots.low_keys.shape[2],
        slots.key_channels.shape[2],
        WIDTH=width,
        COLUMNS=max(MIN_ROWS, triton.next_power_of_2(width)),
        num_warps=APPEND_WARPS,
        enable_fp_fusion=False,  # see `append_token`
    )


def attend(step: Step, slots: ZipSlots, cut: Cut) -> OutAndLse:
    """Attend to all that the slots hold, and add what the buffers' keys get to `attention`."""
    high, low = runs(slots)
    every = replace(cut.high, splits=1 + cut.high.splits + cut.low.splits)
    parts = empty_parts(step.q, every.splits)
    _attend_buffer(step, slots, parts)
    _attend_run(step, slots, high, Part(cut.high, 1, parts))
    _attend_run(step, slots, low, Part(cut.low, 1 + cut.high.splits, parts))
    out, lse = merged(step.q, parts, step.rows, every, reading=ALL_SPLITS)
    _note_attention(step, slots, lse)
    return out, lse


def runs(slots: ZipSlots) -> tuple[Run, Run]:
    """Return the entries in 4 and in 2 bits."""
    high = Run(HIGH_BITS, slots.high_keys, slots.high_values, 0)
    return high, Run(LOW_BITS, slots.low_keys, slots.low_values, slots.high_keys.shape[2])


def _attend_buffer(step: Step, slots: ZipSlots, parts: OutAndLse) -> None:
    """Write the results for plain entries as those of split 0."""
    (rows, heads, queries, width), padded = step.q.shape, tile(step.q)
    blocks = triton.cdiv(queries, padded.rows)
    attend_buffer[heads * blocks, rows](
        strided(step.q, 3),
        slots.plain_keys,
        slots.plain_values,
        slots.counts,
        step.rows,
        parts,
        step.scale * LOG2_E,
        heads,
        queries,
        slots.plain_keys.shape[2],
        parts[0].shape[2],
        blocks,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=BUFFER_BLOCK,
        UPCAST=not step.q.is_cuda,
        num_warps=BUFFER_WARPS[padded.itemsize],
    )


def _attend_run(step: Step, slots: ZipSlots, run: Run, to: Part) -> None:
    """Write the results for entries with as many bits."""
    (rows, heads, queries, width), padded, cut = step.q.shape, chunk_tile(step.q, run), to.cut
    blocks = triton.cdiv(queries, padded.rows)
    attend_chunks[cut.splits, heads * blocks, rows](
        strided(step.q, 3),
        run.keys.view(WORD),
        slots.key_channels,
        run.values.view(WORD),
        slots.value_factors,
        slots.value_ranges.view(RANGE),
        slots.counts,
        step.rows,
        to.parts,
        step.scale * LOG2_E,
        heads,
        queries,
        run.keys.shape[2],
        slots.value_ranges.shape[2],
        run.first,
        slots.key_channels.shape[2],
        to.parts[0].shape[2],
        to.first,
        blocks,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=max(MIN_ROWS, padded.columns // NIBBLES.parts),
        BLOCK=cut.block,
        BITS=run.bits,
        PRODUCT=tl.float16 if padded.itemsize == HALF_BYTES else tl.float32,
        PACKED=step.q.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )


def _note_attention(step: Step, slots: ZipSlots, lse: Tensor) -> None:
    (rows, heads, queries, width), padded = step.q.shape, tile(step.q)
    note_attention[heads, rows, triton.cdiv(CHUNK, BUFFER_BLOCK)](
        strided(step.q, 3),
        slots.plain_keys,
        slots.attention,
        slots.counts,
        step.rows,
        lse,
        step.scale * LOG2_E,
        heads,
        queries,
        slots.plain_keys.shape[2],
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=BUFFER_BLOCK,
        UPCAST=not step.q.is_cuda,
        num_warps=BUFFER_WARPS[padded.itemsize],
    )


def usual_cut(q: Tensor, slots: ZipSlots) -> Cut:
    """Return the default division for q [B, H, G, D]."""
    return Cut(*(_usual_tiling(q, run) for run in runs(slots)))


def _usual_tiling(q: Tensor, run: Run) -> Tiling:
    padded = chunk_tile(q, run)
    programs = q.shape[0] * q.shape[1] * triton.cdiv(q.shape[2], padded.rows)
    warps = FEW_WARPS if padded.rows * max(1, padded.columns // 128) <= ONE_WARP else MORE_WARPS
    program = FLOAT32 if padded.itemsize > HALF_BYTES else Tiling(1, BLOCK, warps, PIPELINE)
    return split(program, programs, run.keys.shape[2], padded, chip(run.keys.device))


def chunk_tile(q: Tensor, run: Run) -> Tile:
    """Return the tile of queries of one program, and the bytes of the entries that it loads."""
    plain, rows = tile(q), max(LEAST_ROWS, triton.next_power_of_2(q.shape[2]))
    stored = plain.columns * run.bits // 8 + RANGE.itemsize
    return replace(plain, rows=min(rows, plain.rows), stored=stored)
