"""prefill_attend: stage pieces of prompts and attend causally to all staged tokens of each prompt.

N rows of a pass, H key-value heads, G query heads per key-value head, S staged entries, D head_dim, P lanes, W window.

A prompt is cut on a grid of `unit_of` tokens. Inside a piece the fallback attends unit by unit, and the tiles operator
in query blocks that divide a unit. So a token's bits do not depend on how its prompt was cut into pieces.

Heads may begin at different places of a lane, if an earlier turn left more entries in some. Each then attends alone.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels.attended import Attended, empty_results, merge
from ringkv.kernels.library import LIBRARY, grouped, register
from ringkv.kernels.packing import fits_tiles

BLOCK = 2048  # keys scored at a time if flash attention does not support the inputs
MAX_WIDTH = 256  # largest head_dim of torch's flash attention on CUDA
UNIT, TILES_UNIT = 64, 32  # tokens; for any head group the rows of TILES_UNIT are whole query blocks of the operator


class Segment(NamedTuple):
    """One piece of a prompt: the rows of a pass that it takes, and its place in the staging.

    first: the lane's first staged entry. start: the place of the piece's first token in the lane. length: the places
    that the whole prompt takes.
    """

    row: int
    rows: int
    lane: int
    first: int
    start: int
    length: int

    @property
    def here(self) -> slice:
        """The piece's rows."""
        return slice(self.row, self.row + self.rows)

    @property
    def entries(self) -> slice:
        """The piece's staged entries."""
        return slice(self.first + self.start, self.first + self.start + self.rows)

    def tail(self, size: int) -> "Segment":
        """Return the part of the piece with its prompt's last `size` tokens. Padding does not belong to it."""
        start = max(self.start, self.length - size)
        rows = max(0, min(self.start + self.rows, self.length) - start)
        return self._replace(row=self.row + start - self.start, rows=rows, start=start)


class Staged(NamedTuple):
    """The staging, and the segments of a pass: arguments of the operators.

    keys, values [H, S, D] and window [P, H, G, W, D] change in place. segments: a `table`, or one of `tables`, in the
    order of their rows. A lane's window keeps its prompt's last W queries, right-aligned.
    """

    keys: Tensor
    values: Tensor
    window: Tensor
    segments: Tensor


def table(segments: Sequence[Segment]) -> Tensor:
    """Return segments as int64 [M, 6] on the CPU, the argument of `prefill_attend`."""
    return torch.tensor(segments, dtype=torch.int64).view(-1, len(Segment._fields))


def tables(segments: Sequence[Segment], begins: Tensor) -> Tensor:
    """Return the tables of L layers, int64 [L, M, 6 + H]: after a segment the first place of its lane in each head.

    begins: int64 [L, P, H]. A head's earlier places in the lane are not attended to.
    """
    first = begins[:, [segment.lane for segment in segments]]
    return torch.cat((table(segments).expand(len(begins), -1, -1), first), -1)


def unit_of(width: int, dtype: torch.dtype, device: torch.device, sliding: int) -> int:
    """Return the tokens between two places where a prompt may be cut, for a head_dim."""
    q = torch.empty(0, width, dtype=dtype, device=device)
    return TILES_UNIT if not sliding and fits_tiles(q, "prefill_attend_tiles") else UNIT


def prefill_attend(
    q: Tensor, k: Tensor | None, v: Tensor | None, staged: Staged, scale: float, sliding: int = 0
) -> Attended:
    """Stage k, v [N, H, D] and attend causally with q [N, H, G, D], each segment to the staged tokens of its lane.

    k, v: None if they are staged already. Rows of no segment have out 0 and lse -inf. Rows beyond a prompt's length are
    padding, which no token of the prompt sees. scale: factor on the scores. sliding: tokens that a token sees,
    including itself; 0 is all. Returns out [N, H, G, D] and lse [N, H, G].
    """
    if sliding:
        return Attended(*torch.ops.ringkv.prefill_attend_sliding(q, k, v, *staged, scale, sliding))
    # Selected here, so that a compiled graph calls the tiles operator without returning to Python in every layer.
    tiles = fits_tiles(q, "prefill_attend_tiles")
    attend = torch.ops.ringkv.prefill_attend_tiles if tiles else torch.ops.ringkv.prefill_attend
    return Attended(*attend(q, k, v, *staged, scale))


class Piece(NamedTuple):
    """One segment's tensors: its queries, and what its lane has staged, its own keys and values included.

    seen_k, seen_v [H, start + T, D]. begins: the first place of each head, if not all are 0.
    """

    q: Tensor
    seen_k: Tensor
    seen_v: Tensor
    start: int
    begins: Sequence[int] = ()

    def seen(self, stop: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Return staged keys and values first .. stop-1."""
        return self.seen_k[:, first:stop], self.seen_v[:, first:stop]

    def units(self, unit: int) -> Iterator["Piece"]:
        """Cut the piece at the multiples of `unit` in its prompt."""
        at = 0
        while at < len(self.q):
            stop = min(len(self.q), at + unit - (self.start + at) % unit)
            yield Piece(self.q[at:stop], *self.seen(self.start + stop), self.start + at, self.begins)
            at = stop

    def heads(self) -> Iterator["Piece"]:
        """Divide the piece by head, each with its own places alone."""
        for head, first in enumerate(self.begins):
            own = slice(head, head + 1)
            yield Piece(self.q[:, own], self.seen_k[own, first:], self.seen_v[own, first:], self.start - first)


def attend_segments(
    attend: Callable[[Piece], Attended], q: Tensor, k: Tensor | None, v: Tensor | None, staged: Staged
) -> tuple[Tensor, Tensor]:
    """Stage every segment, and attend with each."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = q.new_full(q.shape[:-1], float("-inf"), dtype=torch.float32)
    fields = len(Segment._fields)
    for row in staged.segments.tolist():
        segment, begins = Segment._make(row[:fields]), row[fields:]
        if segment.rows:
            new_k, new_v = (None if vectors is None else vectors[segment.here] for vectors in (k, v))
            piece = stage(segment, q[segment.here], new_k, new_v, staged)
            out[segment.here], lse[segment.here] = attend(piece._replace(begins=begins if any(begins) else ()))
    return out, lse


def by_head(attend: Callable[[Piece], Attended]) -> Callable[[Piece], Attended]:
    """Return what attends with all heads together, or with each alone if they begin at different places."""

    def attend_heads(piece: Piece) -> Attended:
        if not piece.begins:
            return attend(piece)
        return Attended(*(torch.cat(parts, 1) for parts in zip(*map(attend, piece.heads()), strict=True)))

    return attend_heads


def stage(segment: Segment, q: Tensor, k: Tensor | None, v: Tensor | None, staged: Staged) -> Piece:
    """Write a segment to its staging lane, unless it is there already."""
    keys, values, window, _ = staged
    for plane, new in ((keys, k), (values, v)):
        if new is not None:
            plane[:, segment.entries] = new.transpose(0, 1)
    tail, size = segment.tail(window.shape[3]), window.shape[3]
    if tail.rows:
        at, place = tail.row - segment.row, tail.start - segment.length + size
        queries = q[at : at + tail.rows].permute(1, 2, 0, 3)
        window[segment.lane, :, :, place : place + tail.rows] = queries
    seen = slice(segment.first, segment.entries.stop)
    return Piece(q, keys[:, seen], values[:, seen], segment.start)


def reference(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    staged: Staged,
    scale: float,
    sliding: int = 0,
    block: int | None = None,
) -> Attended:
    """Implement `prefill_attend` in plain torch, in float32, `block` keys at a time (all if None)."""

    @by_head
    def attend(piece: Piece) -> Attended:
        return _in_blocks(piece, scale, sliding, block)

    return Attended(*attend_segments(attend, q, k, v, staged))


def _in_blocks(piece: Piece, scale: float, sliding: int, block: int | None) -> Attended:
    rows, start, stop = piece.q.permute(1, 2, 0, 3).float() * scale, piece.start, piece.seen_k.shape[1]
    position = torch.arange(start, stop, device=rows.device)[:, None]
    result = Attended(torch.zeros_like(rows), rows.new_full(rows.shape[:-1], float("-inf")))
    first = max(0, start - sliding + 1) if sliding else 0
    for low in range(first, stop, block or stop):
        here = slice(low, min(stop, low + (block or stop)))
        key = torch.arange(here.start, here.stop, device=rows.device)
        hidden = (key > position) | (key <= position - sliding) if sliding else key > position
        keys, values = (plane[:, None].float() for plane in piece.seen(here.stop, here.start))
        result = merge(result, attend_visible(rows, keys, values, hidden))
    return Attended(result.out.permute(2, 0, 1, 3).to(piece.q.dtype), result.lse.permute(2, 0, 1).contiguous())


def attend_visible(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Attended:
    """Return attention of scaled q [..., T, D] to k, v [..., n, D], except keys with bool hidden [T, n]."""
    scores = torch.matmul(q, k.transpose(-1, -2)).masked_fill_(hidden, float("-inf"))
    lse = scores.logsumexp(-1)
    return Attended(torch.matmul((scores - lse[..., None]).exp_().nan_to_num_(0.0), v), lse)


def _two_calls(q: Tensor, k: Tensor | None, v: Tensor | None, staged: Staged, scale: float) -> tuple[Tensor, Tensor]:
    """Merge two flash calls by their log-sum-exp: the history without a mask, and the unit with a causal one."""
    attend = by_head(partial(_history_and_unit, scale=scale))
    return attend_segments(lambda piece: _by_units(piece, attend), q, k, v, staged)


def _by_units(piece: Piece, attend: Callable[[Piece], Attended]) -> Attended:
    return Attended(*map(torch.cat, zip(*map(attend, piece.units(UNIT)), strict=True)))


def _history_and_unit(piece: Piece, scale: float) -> Attended:
    """The G query heads of a key-value head are rows of one matrix, so the history is read once for all."""
    chunk, heads, groups, width = piece.q.shape
    rows = piece.q.permute(1, 2, 0, 3).reshape(1, heads, groups * chunk, width)
    own = piece.seen(piece.start + chunk, piece.start)
    here_k, here_v = (vectors.repeat_interleave(groups, 0)[None] for vectors in own)
    here = _flash(rows.view(1, heads * groups, chunk, width), here_k, here_v, scale, causal=True)
    attended = Attended(here.out.reshape(rows.shape), here.lse.reshape(rows.shape[:-1]))
    if piece.start:
        keys, values = piece.seen(piece.start)
        attended = merge(attended, _flash(rows, keys[None], values[None], scale))
    return Attended(*_as_chunk(attended, piece.q))


def _banded(
    q: Tensor, k: Tensor | None, v: Tensor | None, staged: Staged, scale: float, sliding: int
) -> tuple[Tensor, Tensor]:
    """Run flash attention with a band mask, over all keys from the first that a unit's first token sees."""
    attend = partial(_band, scale=scale, sliding=sliding)
    return attend_segments(lambda piece: _by_units(piece, attend), q, k, v, staged)


def _band(piece: Piece, scale: float, sliding: int) -> Attended:
    """The G query heads of a key-value head are rows of one matrix, so keys are read once for all."""
    chunk, heads, groups, width = piece.q.shape
    first, stop = max(0, piece.start - sliding + 1), piece.start + chunk
    position, key = torch.arange(piece.start, stop)[:, None], torch.arange(first, stop)
    hidden = (key > position) | (key <= position - sliding)
    band = torch.zeros_like(hidden, dtype=piece.q.dtype).masked_fill_(hidden, float("-inf")).repeat(groups, 1)
    rows = piece.q.permute(1, 2, 0, 3).reshape(1, heads, groups * chunk, width)
    keys, values = piece.seen(stop, first)
    return Attended(*_as_chunk(_flash(rows, keys[None], values[None], scale, mask=band), piece.q))


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, mask: Tensor | None = None) -> Attended:
    """Run torch's CPU flash attention on q, k, v [1, heads, rows, D]."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return Attended(*attend(q, k, v, 0.0, causal, attn_mask=mask, scale=scale))


def _as_chunk(attended: Attended, q: Tensor) -> tuple[Tensor, Tensor]:
    """Reshape a result [1, H, G * T, D] to out [T, H, G, D] and lse [T, H, G]."""
    chunk, heads, groups, width = q.shape
    out = attended.out.reshape(heads, groups, chunk, width).permute(2, 0, 1, 3)
    return out, attended.lse.reshape(heads, groups, chunk).permute(2, 0, 1).float()


def _cuda(q: Tensor, k: Tensor | None, v: Tensor | None, staged: Staged, scale: float) -> tuple[Tensor, Tensor]:
    """Run FlashAttention-2 if it supports the inputs, else blocks of keys. Neither materialises all scores."""
    if not _fits_flash(q):
        return reference(q, k, v, staged, scale, block=BLOCK)
    attend = by_head(partial(_flash_on_cuda, scale=scale))
    return attend_segments(attend, q, k, v, staged)


def _flash_on_cuda(piece: Piece, scale: float) -> Attended:
    chunk, heads, groups, width = piece.q.shape
    rows = piece.q.permute(1, 2, 0, 3).reshape(1, heads * groups, chunk, width)
    # For this operator "causal" aligns the last query with the last key, and query heads may share key-value heads.
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    out, lse = attend(rows, piece.seen_k[None], piece.seen_v[None], 0.0, True, False, scale=scale)[:2]
    return Attended(*_as_chunk(Attended(out, lse), piece.q))


def _fits_flash(q: Tensor) -> bool:
    width = q.shape[-1]
    return (
        q.itemsize == 2
        and width % 8 == 0
        and width <= MAX_WIDTH
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def _cuda_sliding(
    q: Tensor, k: Tensor | None, v: Tensor | None, staged: Staged, scale: float, sliding: int
) -> tuple[Tensor, Tensor]:
    return reference(q, k, v, staged, scale, sliding, BLOCK)


register("prefill_attend", grouped(_two_calls), empty_results)
LIBRARY.impl("prefill_attend", grouped(_cuda), "CUDA")
register("prefill_attend_sliding", grouped(_banded), empty_results)
LIBRARY.impl("prefill_attend_sliding", grouped(_cuda_sliding), "CUDA")
register_fake("ringkv::prefill_attend_tiles", empty_results, lib=LIBRARY)
