"""Attention of a decode step over latents, data parallel over slots: a rank attends for its own slots, with all heads.

N rows of a step, G query heads of this rank, D elements of an entry, V of them values. Row i is of rank i % ranks.

All heads share a slot's latents. So if ranks divided the heads here, each would need the latents of all slots. The
owner of a row gets the queries of all heads instead, and sends each rank what its heads have found.
Source: SnapStream (arXiv 2511.03092), which decodes DeepSeek-R1 data parallel over the batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.base.ranks import Exchange
from ringkv.kernels.collective import columns_to_rows, rows_to_columns
from ringkv.kernels.encoded_latents import ATTEND
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.partial import Partial

OTHER_RANK, NO_SLOT = -1, -2
"""Slots of rows, if ranks divide the slots: of a row whose slot is on another rank, and of a row that has none."""


class Division(NamedTuple):
    """Ranks that divide slots. heads: of each rank. values: V. exchange: not "none"."""

    heads: Sequence[int]
    values: int
    exchange: Exchange


def decode_attend_slots(
    q: Tensor,
    k: Tensor,
    planes: Sequence[Tensor],
    format: str,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    division: Division | None,
) -> Partial:
    """Write k [N, 1, D] of this rank's rows and attend; see `decode_attend_latent`, which runs without a division.

    q [N, 1, G, D]: of this rank's heads. planes: latents [slots of this rank, 1, C, D]; in another format than plain
    those of `attend_latents`, with their centers. slot: int32 [N], among these, or OTHER_RANK. Returns out
    [N, 1, G, V], or D elements without a division, and lse [N, 1, G] of its heads.
    """
    if division is None:
        return ATTEND[format](q, k, *planes, slot, entry, live, scale)
    attend = torch.ops.ringkv.decode_attend_latent_slots
    return Partial(*attend(q, k, planes, format, slot, entry, live, scale, *division))


def _decode(
    q: Tensor,
    k: Tensor,
    planes: Sequence[Tensor],
    format: str,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    heads: Sequence[int],
    values: int,
    exchange: Exchange,
) -> tuple[Tensor, Tensor]:
    own = _own_rows(slot, len(heads))
    whole = columns_to_rows(q.flatten(1), [count * q.shape[-1] for count in heads], exchange)
    queries = whole.to(q.dtype).view(len(own), 1, -1, q.shape[-1])
    found = ATTEND[format](queries, k[own], *planes, slot[own], entry[own], live[own], scale)
    parts = torch.cat((found.out[..., :values].float(), found.lse[..., None]), -1).flatten(1)
    widths, mine = [count * (values + 1) for count in heads], q.shape[2] * (values + 1)
    columns = rows_to_columns(parts, widths, mine, exchange).view(*q.shape[:3], values + 1)
    return columns[..., :values].to(q.dtype).contiguous(), columns[..., values].contiguous()


def _own_rows(slot: Tensor, ranks: int) -> Tensor:
    """Return int64 [N / ranks], in order. A GPU's host does not wait, so that a CUDA graph can contain it."""
    each = len(slot) // ranks
    assert slot.is_cuda or int((slot >= 0).sum()) * ranks == len(slot), "ranks have different numbers of rows"
    return (slot < 0).int().argsort(stable=True)[:each]


def _shape(q: Tensor, *others: Tensor | Sequence[Tensor] | float | Sequence[int] | str) -> tuple[Tensor, Tensor]:
    values = others[-2]
    assert isinstance(values, int)
    return q.new_empty(*q.shape[:3], values), q.new_empty(q.shape[:3], dtype=torch.float32)


LIBRARY.impl("decode_attend_latent_slots", _decode, "CompositeExplicitAutograd")
register_fake("ringkv::decode_attend_latent_slots", _shape, lib=LIBRARY)
