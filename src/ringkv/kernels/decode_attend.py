"""Decode attention: the fresh token of each row of a step is written to its slot, which is then attended to.

B rows of a step, H key-value heads, G query heads per key-value head, D elements of a vector, V of a value.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.attended import Attended, empty_results, in_turn
from ringkv.kernels.keep_queries import keep_queries
from ringkv.kernels.library import grouped, register
from ringkv.kernels.slots import Pages, Ragged, Residents, Rows, Slots


def decode_attend(q: Tensor, k: Tensor | None, v: Tensor | None, slots: Slots, rows: Rows, scale: float) -> Attended:
    """Write k, v [B, H, D] at each row's `entry` and attend to the entries that the reading selects, of 0 .. live-1.

    q [B, H, G, D]. Rows may have several tokens: with entry and live [R, T], B is R * T, and the results are those of T
    steps. Returns softmax(scale * q keys^T) values [B, H, G, D] and its log-sum-exp; of a free row 0 and -inf. Scores
    and sums are float32. k and v are None if another layer has written them. Latents have H = 1 and no v: their
    elements are values, too. A row's result depends on nothing but the row. The results of a reading that selects all
    live entries have the bits of those without a reading. The queries of the layer that writes k and v are kept.
    """
    if slots.queries is not None and k is not None:
        keep_queries(q, slots.queries, *rows.of_tokens)
    return Attended(*torch.ops.ringkv.decode_attend(q, k, v, *slots.arguments, *rows, slots.encoding, scale))


class _Arguments(NamedTuple):
    """The slots and the rows of a step, in the order of the operator's arguments."""

    tensors: Sequence[Tensor]
    centers: Tensor | None
    places: Tensor | None
    pages: int
    residents: int
    rows: Rows
    encoding: PlaneFormat

    @property
    def slots(self) -> Slots:
        planes = len(self.tensors) - self.pages - self.residents
        reading: Pages | Ragged | None = None
        if self.places is not None:
            reading = Ragged(self.places)
        elif self.pages:
            digests, pins, counts, *residents = self.tensors[planes:]
            reading = Pages(digests, pins, counts, Residents(*residents) if residents else None)
        return Slots(self.encoding, tuple(self.tensors[:planes]), self.centers, reading)


def _reference(q: Tensor, k: Tensor | None, v: Tensor | None, step: _Arguments, scale: float) -> tuple[Tensor, Tensor]:
    return _each(decode_attend_reference.decode_attend, q, k, v, step, scale)


def _cuda(q: Tensor, k: Tensor | None, v: Tensor | None, step: _Arguments, scale: float) -> tuple[Tensor, Tensor]:
    from ringkv.kernels.gpu import decode_attend as gpu  # loads Triton

    return _each(gpu.decode_attend, q, k, v, step, scale)


def _each(
    attend: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    step: _Arguments,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attend with one token of each row after the other."""
    slots = step.slots
    return in_turn(lambda q, k, v, rows: attend(q, k, v, slots, rows, scale), q, k, v, step.rows)


register("decode_attend", grouped(_reference), empty_results, grouped(_cuda))
register("decode_attend.reference", grouped(_reference), empty_results)
