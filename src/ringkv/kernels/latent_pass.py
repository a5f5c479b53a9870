"""Attention of a pass over latents: pieces of prompts in two forms, and slots (arXiv 2405.04434, section 2.1.3).

N rows of a pass, H query heads, S staged entries, P lanes, W window. The sizes of entries, queries and values are those
of `expanded_attend`.

In the absorbed form all heads attend to the entries themselves. In the expanded form a block of latents becomes each
head's keys and values. For a row, an entry and a head it takes D + rotated + V multiply-adds instead of 2 R + rotated.
Expansion costs R (D + V) for an entry and a head in each chunk. So chunks of at least EXPANDED_ROWS rows are expanded
on a CPU, and shorter ones are not. Slots are never expanded.

The two forms round differently. So a token's bits depend on the form of its chunk, and on nothing else of the cut.

Queries of expanded chunks are absorbed only for the window. Which rows those are is known only while the operator runs.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ringkv.kernels.absorb import absorb, absorb_among, project_values, values_among
from ringkv.kernels.attended import Attended
from ringkv.kernels.by_head import outputs
from ringkv.kernels.expanded_attend import Expansion, expanded_attend
from ringkv.kernels.latent_attend import StagedLatents, prefill_attend_latent
from ringkv.kernels.latent_slots import NO_SLOT, UNDIVIDED, Division, SlotArguments, decode_attend_slots
from ringkv.kernels.library import LIBRARY, grouped, register
from ringkv.kernels.prefill_attend import Segment, stage, table
from ringkv.kernels.slots import Rows, Slots

EXPANDED_ROWS = 192  # with DeepSeek's heads the two forms take as long at about 140


def prefill_attend_expanded(
    q: Tensor, k: Tensor, staged: StagedLatents, scale: float, expansion: Expansion
) -> Attended:
    """Stage k [N, 1, entry] in latents [1, S, entry] and attend causally; see `prefill_attend`.

    q [N, 1, H, D + rotated]: plain queries. window [P, 1, H, W, entry] keeps absorbed ones. Returns out [N, 1, H, V]
    and lse [N, 1, H].
    """
    return Attended(*torch.ops.ringkv.prefill_attend_expanded(q, k, *staged, *expansion, scale))


def mixed_attend_expanded(
    q: Tensor,
    k: Tensor,
    staged: StagedLatents,
    slots: Slots,
    rows: Rows,
    scale: float,
    expansion: Expansion,
    division: Division = UNDIVIDED,
) -> Attended:
    """Attend as `prefill_attend_expanded`, and with the rows of slots as `decode_attend_slots`.

    live is 0 for rows of pieces. If ranks divide the slots, `slot` is NO_SLOT for them.
    """
    arguments = q, k, *staged, list(slots.planes), slots.centers, *rows, slots.encoding, *expansion, scale, *division
    return Attended(*torch.ops.ringkv.mixed_attend_expanded(*arguments))


def _prefill(q: Tensor, k: Tensor, staged: StagedLatents, expansion: Expansion, scale: float) -> tuple[Tensor, Tensor]:
    none = q.new_zeros(len(q), dtype=torch.int32)
    return _mixed(q, k, staged, SlotArguments([], None, Rows(none, none, none), "plain"), expansion, scale, UNDIVIDED)


def _mixed(
    q: Tensor,
    k: Tensor,
    staged: StagedLatents,
    step: SlotArguments,
    expansion: Expansion,
    scale: float,
    division: Division,
) -> tuple[Tensor, Tensor]:
    """Run each form for its rows."""
    pieces = [Segment._make(numbers) for numbers in staged.segments.tolist()]
    long = [piece for piece in pieces if piece.rows >= EXPANDED_ROWS]
    short = [piece for piece in pieces if 0 < piece.rows < EXPANDED_ROWS]
    for piece in long:
        _stage(piece, q, k, staged, expansion)
    out, lse = expanded_attend(q[:, 0], staged.latents, table(long), scale, expansion)
    fed = (step.rows.live if division.exchange == "none" else step.rows.slot > NO_SLOT).nonzero()[:, 0]
    rows = torch.cat((*(torch.arange(piece.row, piece.here.stop) for piece in short), fed))
    if len(rows):
        absorbed = staged._replace(segments=_packed(short))
        decoded = step._replace(rows=Rows(*(numbers[fed] for numbers in step.rows)))
        queries = absorb_among(q, k, rows, expansion)
        attended = _attend_absorbed(queries, k[rows], absorbed, decoded, scale, division)
        out[rows] = values_among(attended.out, rows, len(q), expansion)
        lse[rows] = attended.lse[:, 0]
    return out[:, None], lse[:, None]


def _attend_absorbed(
    q: Tensor, k: Tensor, staged: StagedLatents, step: SlotArguments, scale: float, division: Division
) -> Attended:
    """Attend with absorbed q [n, 1, H, entry]: the rows of pieces, one after the other, then those of slots."""
    first, parts = len(q) - len(step.rows.live), []
    if len(staged.segments):
        parts.append(prefill_attend_latent(q[:first], k[:first], staged, scale))
    if len(step.rows.live):
        parts.append(decode_attend_slots(q[first:], k[first:], step.slots, step.rows, scale, division))
    width = min(part.out.shape[-1] for part in parts)  # divided slots return values alone
    return Attended(torch.cat([part.out[..., :width] for part in parts]), torch.cat([part.lse for part in parts]))


def _stage(piece: Segment, q: Tensor, k: Tensor, staged: StagedLatents, expansion: Expansion) -> None:
    """Stage a piece. Only the queries that the window keeps are absorbed."""
    staged.latents[:, piece.entries] = k[piece.here].transpose(0, 1)
    tail = piece.tail(staged.window.shape[3])
    if tail.rows:
        queries = absorb_among(q, k, torch.arange(tail.row, tail.here.stop), expansion)
        stage(tail, queries, None, None, staged.twice)


def _packed(pieces: Sequence[Segment]) -> Tensor:
    """Return the table of pieces whose rows follow each other from row 0 on."""
    starts = accumulate((piece.rows for piece in pieces), initial=0)
    return table([piece._replace(row=row) for piece, row in zip(pieces, starts, strict=False)])


def _all_absorbed(
    q: Tensor, k: Tensor, staged: StagedLatents, expansion: Expansion, scale: float
) -> tuple[Tensor, Tensor]:
    """Absorb all chunks: only that form has a kernel on CUDA."""
    attended = prefill_attend_latent(absorb(q, k, expansion), k, staged, scale)
    return project_values(attended, expansion)


def _shape(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, value_up = (argument for argument in others if isinstance(argument, Tensor))
    rows, _, heads, _ = q.shape
    out = q.new_empty(rows, 1, heads, outputs(value_up, heads))
    return out, q.new_empty(rows, 1, heads, dtype=torch.float32)


register("prefill_attend_expanded", grouped(_prefill), _shape)
LIBRARY.impl("prefill_attend_expanded", grouped(_all_absorbed), "CUDA")
register("mixed_attend_expanded", grouped(_mixed), _shape)
