"""Attention of a decode step over latents, data parallel over slots: a rank attends for its slots, with all heads.

N rows of a step, G query heads of this rank, D elements of an entry, V of them values. Row i is of rank i % ranks.

All heads share a slot's latents. So if ranks divided the heads here, each would need the latents of all slots. The
owner of a row gets the queries of all heads instead, and sends each rank the results of its heads.
Source: SnapStream (arXiv 2511.03092), which decodes DeepSeek-R1 data parallel over the batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.ranks import Exchange
from ringkv.kernels.attended import Attended, in_turn
from ringkv.kernels.collective import columns_to_rows, rows_to_columns
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.library import grouped, register
from ringkv.kernels.slots import Rows, Slots

OTHER_RANK, NO_SLOT = -1, -2
"""Slots of rows, if ranks divide the slots: of a row whose slot is on another rank, and of a row that has none."""


class Division(NamedTuple):
    """Ranks that divide slots. heads: of each rank. values: V. exchange: "none" if they do not."""

    heads: Sequence[int]
    values: int
    exchange: Exchange


UNDIVIDED = Division((0,), 0, "none")  # compiled graphs cannot pass an empty list


def decode_attend_slots(q: Tensor, k: Tensor, slots: Slots, rows: Rows, scale: float, division: Division) -> Attended:
    """Write k [N, 1, D] of this rank's rows and attend to latents, as `decode_attend`, which runs without a division.

    q [N, 1, G, D]: of this rank's heads. slots: those of this rank; `slot` is among these, or OTHER_RANK. Returns out
    [N, 1, G, V], or D elements without a division, and lse [N, 1, G] of its heads.
    """
    if division.exchange == "none":
        return decode_attend(q, k, None, slots, rows, scale)

    def attend(q: Tensor, k: Tensor, v: None, rows: Rows) -> tuple[Tensor, Tensor]:
        step = list(slots.planes), slots.centers, *rows, slots.encoding, scale, *division
        return Attended(*torch.ops.ringkv.decode_attend_latent_slots(q, k, *step))

    return Attended(*in_turn(attend, q, k, None, rows))


class SlotArguments(NamedTuple):
    """Slots of latents and the rows of a step, in the order of operators' arguments."""

    planes: Sequence[Tensor]
    centers: Tensor | None
    rows: Rows
    encoding: PlaneFormat

    @property
    def slots(self) -> Slots:
        return Slots(self.encoding, tuple(self.planes), self.centers)


def _decode(q: Tensor, k: Tensor, step: SlotArguments, scale: float, division: Division) -> tuple[Tensor, Tensor]:
    heads, values, exchange = division
    mine = _rows_of_rank(step.rows.slot, len(heads))
    of_all = columns_to_rows(q.flatten(1), [count * q.shape[-1] for count in heads], exchange)
    queries = of_all.to(q.dtype).view(len(mine), 1, -1, q.shape[-1])
    rows = Rows(*(numbers[mine] for numbers in step.rows))
    attended = decode_attend(queries, k[mine], None, step.slots, rows, scale)
    parts = torch.cat((attended.out[..., :values].float(), attended.lse[..., None]), -1).flatten(1)
    widths, width = [count * (values + 1) for count in heads], q.shape[2] * (values + 1)
    columns = rows_to_columns(parts, widths, width, exchange).view(*q.shape[:3], values + 1)
    return columns[..., :values].to(q.dtype).contiguous(), columns[..., values].contiguous()


def _rows_of_rank(slot: Tensor, ranks: int) -> Tensor:
    """Return int64 [N / ranks], in order. A GPU's host does not wait, so that a CUDA graph can contain it."""
    each = len(slot) // ranks
    assert slot.is_cuda or int((slot >= 0).sum()) * ranks == len(slot), "ranks have different numbers of rows"
    return (slot < 0).int().argsort(stable=True)[:each]


def _shape(q: Tensor, k: Tensor, step: SlotArguments, scale: float, division: Division) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], division.values), q.new_empty(q.shape[:3], dtype=torch.float32)


register("decode_attend_latent_slots", grouped(_decode), grouped(_shape))
