"""Weight declarations: which checkpoint tensors make up each of our weights, its packing, and how ranks split it.

No torch. Names of parts are Hugging Face's; parts are stacked along their first dimension.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal, NamedTuple

Pack = Literal["matrix", "gated", "table", "plain"]
"""matrix: [out, in], used by `linear`. gated: gate and up stacked, used by `gated`. table: rows of an embedding or of
the vocabulary projection. plain: a vector, stored unpacked."""


class CheckpointTensor(NamedTuple):
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]


class Weight(NamedTuple):
    """One of our weights, stacked from `parts`.

    shard: the axis of each part that tensor-parallel ranks split; None if every rank holds all of it.
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
    """Declare a one-dimensional weight that every rank holds, such as a norm's."""
    return Weight((CheckpointTensor(part, (length,)),), "plain")


def linear(ours: str, rows: Sequence[tuple[str, int]], columns: int, bias: bool, axis: int, pack: Pack) -> Declared:
    """Declare a fused linear layer: its matrix and, if `bias`, its bias. rows: names and row counts of the parts.

    axis: the dimension of the matrix that ranks split. A bias is split only if the rows are.
    """
    matrix = Weight(tuple(CheckpointTensor(f"{name}.weight", (n, columns)) for name, n in rows), pack, axis)
    if not bias:
        return {ours: matrix}
    biases = tuple(CheckpointTensor(f"{name}.bias", (n,)) for name, n in rows)
    return {ours: matrix, f"{ours}_bias": Weight(biases, "plain", 0 if axis == 0 else None)}
