"""Weight declarations: which checkpoint tensors make up each of our weights, how it is packed, how ranks divide it.

No torch. Names of parts are Hugging Face's; parts are stacked along their first dimension.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal, NamedTuple

Pack = Literal["matrix", "gated", "table", "plain"]
"""matrix: [out, in], read by `linear`. gated: gate and up stacked, read by `gated`. table: rows that an embedding looks
up or that the vocabulary projection reads. plain: a vector, stored as it is."""


class CheckpointTensor(NamedTuple):
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]


class Weight(NamedTuple):
    """One tensor of ours.

    shard: the axis of each part that tensor-parallel ranks divide; None if every rank holds all of it.
    """

    parts: tuple[CheckpointTensor, ...]
    pack: Pack
    shard: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stacked parts."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def elements(self) -> int:
        return prod(self.shape)


Declared = Mapping[str, Weight]
"""Weights by our names."""


def vector(part: str, length: int) -> Weight:
    """A weight of one dimension that every rank holds, such as a norm's."""
    return Weight((CheckpointTensor(part, (length,)),), "plain")


def linear(ours: str, rows: Sequence[tuple[str, int]], columns: int, bias: bool, axis: int, pack: Pack) -> Declared:
    """A linear layer made of several: its matrix and, if there is one, its bias. `rows` are names and row counts.

    axis: the dimension of the matrix that ranks divide. A bias is divided with the rows only.
    """
    matrix = Weight(tuple(CheckpointTensor(f"{name}.weight", (n, columns)) for name, n in rows), pack, axis)
    if not bias:
        return {ours: matrix}
    added = Weight(tuple(CheckpointTensor(f"{name}.bias", (n,)) for name, n in rows), "plain", 0 if axis == 0 else None)
    return {ours: matrix, f"{ours}_bias": added}
