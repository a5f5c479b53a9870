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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels.absorb import absorb, absorb_among, project_values, values_among
from ringkv.kernels.by_head import outputs
from ringkv.kernels.expanded_attend import Expansion, expanded_attend
from ringkv.kernels.latent_attend import prefill_attend_latent
from ringkv.kernels.latent_slots import NO_SLOT, Division, decode_attend_slots
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.partial import Partial
from ringkv.kernels.prefill_attend import Segment, stage, table

EXPANDED_ROWS = 192  # with DeepSeek's heads the two forms take as long at about 140


class Slots(NamedTuple):
    """Planes of slots, see `decode_attend_slots`, and int32 [N] where rows write and read; live is 0 for pieces.

    If ranks divide the slots, `slot` is NO_SLOT for rows of pieces.
    """

    planes: Sequence[Tensor]
    format: str
    slot: Tensor
    entry: Tensor
    live: Tensor


def prefill_attend_expanded(
    q: Tensor, k: Tensor, latents: Tensor, window: Tensor, segments: Tensor, scale: float, expansion: Expansion
) -> Partial:
    """Stage k [N, 1, entry] in latents [1, S, entry] and attend causally; see `prefill_attend`.

    q [N, 1, H, D + rotated]: plain queries. window [P, 1, H, W, entry] keeps absorbed ones. Returns out [N, 1, H, V]
    and lse [N, 1, H].
    """
    attend = torch.ops.ringkv.prefill_attend_expanded
    return Partial(*attend(q, k, latents, window, segments, *expansion, scale))


def mixed_attend_expanded(
    q: Tensor,
    k: Tensor,
    latents: Tensor,
    window: Tensor,
    segments: Tensor,
    slots: Slots,
    scale: float,
    expansion: Expansion,
    division: Division | None = None,
) -> Partial:
    """Attend as `prefill_attend_expanded`, and with the rows of slots as `decode_attend_slots`."""
    arguments = q, k, latents, window, segments, *slots, *expansion, scale
    if division is None:
        return Partial(*torch.ops.ringkv.mixed_attend_expanded(*arguments))
    return Partial(*torch.ops.ringkv.mixed_attend_slots(*arguments, *division))


def _prefill(
    q: Tensor,
    k: Tensor,
    latents: Tensor,
    window: Tensor,
    segments: Tensor,
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    none = q.new_zeros(len(q), dtype=torch.int32)
    slots = Slots([], "plain", none, none, none)
    return _mixed(q, k, latents, window, segments, *slots, key_up, value_up, scale)


def _mixed(
    q: Tensor,
    k: Tensor,
    latents: Tensor,
    window: Tensor,
    segments: Tensor,
    slots: Sequence[Tensor],
    format: str,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
    *divided: Any,
) -> tuple[Tensor, Tensor]:
    """Run each form for its rows. divided: the fields of a `Division`, or none."""
    expansion, division = Expansion(key_up, value_up), Division(*divided) if divided else None
    pieces = [Segment._make(one) for one in segments.tolist()]
    long = [piece for piece in pieces if piece.rows >= EXPANDED_ROWS]
    short = [piece for piece in pieces if 0 < piece.rows < EXPANDED_ROWS]
    for piece in long:
        _stage(piece, q, k, latents, window, expansion)
    out, lse = expanded_attend(q[:, 0], latents, table(long), scale, expansion)
    fed = (live if division is None else slot > NO_SLOT).nonzero()[:, 0]
    rows = torch.cat((*(torch.arange(piece.row, piece.here.stop) for piece in short), fed))
    if len(rows):
        decoded = Slots(slots, format, slot[fed], entry[fed], live[fed])
        queries = absorb_among(q, k, rows, expansion)
        found = _attend_absorbed(queries, k[rows], latents, window, short, decoded, scale, division)
        out[rows] = values_among(found.out, rows, len(q), expansion)
        lse[rows] = found.lse[:, 0]
    return out[:, None], lse[:, None]


def _attend_absorbed(
    q: Tensor,
    k: Tensor,
    latents: Tensor,
    window: Tensor,
    pieces: Sequence[Segment],
    slots: Slots,
    scale: float,
    division: Division | None,
) -> Partial:
    """Attend with absorbed q [n, 1, H, entry]: the rows of pieces, one after the other, then those of slots."""
    first, found = len(q) - len(slots.live), []
    if pieces:
        found.append(prefill_attend_latent(q[:first], k[:first], latents, window, _packed(pieces), scale))
    if len(slots.live):
        found.append(decode_attend_slots(q[first:], k[first:], *slots, scale, division))
    width = min(part.out.shape[-1] for part in found)  # divided slots return values alone
    return Partial(torch.cat([part.out[..., :width] for part in found]), torch.cat([part.lse for part in found]))


def _stage(piece: Segment, q: Tensor, k: Tensor, latents: Tensor, window: Tensor, expansion: Expansion) -> None:
    """Stage a piece. Only the queries that the window keeps are absorbed."""
    latents[:, piece.entries] = k[piece.here].transpose(0, 1)
    tail = piece.tail(window.shape[3])
    if tail.rows:
        queries = absorb_among(q, k, torch.arange(tail.row, tail.here.stop), expansion)
        stage(tail, queries, None, None, latents, latents, window)


def _packed(pieces: Sequence[Segment]) -> Tensor:
    """Return the table of pieces whose rows follow each other from row 0 on."""
    starts = accumulate((piece.rows for piece in pieces), initial=0)
    return table([piece._replace(row=row) for piece, row in zip(pieces, starts, strict=False)])


def _all_absorbed(
    q: Tensor,
    k: Tensor,
    latents: Tensor,
    window: Tensor,
    segments: Tensor,
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Absorb all chunks: only that form has a kernel on CUDA."""
    expansion = Expansion(key_up, value_up)
    found = prefill_attend_latent(absorb(q, k, expansion), k, latents, window, segments, scale)
    return project_values(found, expansion)


def _shape(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, value_up = (one for one in others if isinstance(one, Tensor))
    rows, _, heads, _ = q.shape
    out = q.new_empty(rows, 1, heads, outputs(value_up, heads))
    return out, q.new_empty(rows, 1, heads, dtype=torch.float32)


LIBRARY.impl("prefill_attend_expanded", _prefill, "CompositeExplicitAutograd")
LIBRARY.impl("prefill_attend_expanded", _all_absorbed, "CUDA")
LIBRARY.impl("mixed_attend_expanded", _mixed, "CompositeExplicitAutograd")
LIBRARY.impl("mixed_attend_slots", _mixed, "CompositeExplicitAutograd")
for name in ("prefill_attend_expanded", "mixed_attend_expanded", "mixed_attend_slots"):
    register_fake(f"ringkv::{name}", _shape, lib=LIBRARY)
