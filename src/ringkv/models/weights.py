"""Weight declarations: which checkpoint tensors make up each of our weights, its packing, and how ranks split it.

No torch. Names of parts are Hugging Face's; parts are stacked along their first dimension.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import prod
from typing import Literal, NamedTuple

from ringkv.base.ranks import Rank
from ringkv.base.stack import Stack

Pack = Literal["matrix", "by_head", "transposed", "gated", "table", "plain", "exact", "router"]
"""matrix: [out, in], used by `linear`. by_head: [out, in], used by `by_head`. transposed: the same, [in, out] in the
checkpoint. gated: gate and up stacked, used by `gated`. table: rows of an embedding or of the vocabulary projection.
plain: a vector, stored unpacked. exact: a vector in float32 in every engine. router: a matrix that is never quantised,
or its bias, with rows of zeros up to a number that can be packed."""


class Heads(NamedTuple):
    """How ranks divide a tensor by heads; see `Rank.heads`."""

    heads: int
    groups: int | None = None


class ExpertShard(NamedTuple):
    """How ranks divide a stack of experts: whole experts, or each expert along `axis` as `Weight.shard` has it."""

    axis: int | Literal["first"]


class CheckpointTensor(NamedTuple):
    """One tensor of a checkpoint, or some of its rows: those from `first` on, of `total`.

    stack: the rows are counted in one matrix of a tensor of several; None if the tensor is the matrix. heads: ranks
    divide the tensor by heads; None: by elements. column, width: the columns start at this one, of so many.
    """

    name: str
    shape: tuple[int, ...]
    first: int = 0
    total: int | None = None  # None: all rows
    stack: Stack | None = None
    heads: Heads | None = None
    column: int = 0
    width: int | None = None  # None: all columns

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of the whole tensor in the checkpoint."""
        shape = self.shape if self.width is None else (self.shape[0], self.width)
        if self.stack:
            return self.stack.stored(shape)
        return shape if self.total is None else (self.total, *shape[1:])

    def rows(self, start: int, stop: int) -> "CheckpointTensor":
        """Return rows start .. stop-1 of these."""
        total = self.total or self.shape[0]
        return self._replace(shape=(stop - start, *self.shape[1:]), first=self.first + start, total=total)

    def columns(self, start: int, stop: int) -> "CheckpointTensor":
        """Return columns start .. stop-1 of these."""
        width = self.width or self.shape[1]
        return self._replace(shape=(self.shape[0], stop - start), column=self.column + start, width=width)

    def of_rank(self, rank: Rank, axis: int) -> "CheckpointTensor":
        """Return a rank's pieces: rows if `axis` is 0, columns if it is 1."""
        size, cut = self.shape[axis], (self.rows, self.columns)[axis]
        if self.heads is None:
            span = rank.elements(size)
            return cut(span.start, span.stop)
        span, each = rank.heads(*self.heads), size // self.heads.heads
        return cut(span.start * each, span.stop * each)


class Weight(NamedTuple):
    """One of our weights, stacked from `parts`.

    shard: the axis along which ranks divide each part, or "matrices"; None if every rank has all.
    "first": the first rank has it and the others zeros, because ranks add up what it is part of. matrices: those of
    equal shape that are packed one by one and stacked; each has its share of the parts. chosen: at most so many of them
    are multiplied with a token; None is all. is_zero: the weight is zeros instead of its parts.
    """

    parts: tuple[CheckpointTensor, ...]
    pack: Pack
    shard: int | Literal["matrices", "first"] | ExpertShard | None = None
    matrices: int = 1
    chosen: int | None = None
    is_zero: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stacked parts."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def active(self) -> int:
        """Elements that one token is multiplied with."""
        return self.elements if self.chosen is None else self.elements * self.chosen // self.matrices

    @property
    def each(self) -> tuple["Weight", ...]:
        """The matrices that are stacked."""
        size = len(self.parts) // self.matrices
        firsts = range(0, len(self.parts), size)
        return tuple(self._replace(parts=self.parts[first : first + size], matrices=1) for first in firsts)

    def of_rank(self, rank: Rank) -> "Weight":
        """Return what a rank has of this weight."""
        if rank.count == 1 or self.shard is None:
            return self
        if isinstance(self.shard, ExpertShard):
            if rank.expert_parallel:
                return self._subset(rank.experts(self.matrices))
            return self._replace(shard=self.shard.axis).of_rank(rank)
        if self.shard == "first":
            return self._replace(is_zero=rank.index > 0)
        if self.shard == "matrices":
            return self._subset(rank.heads(self.matrices))
        return self._replace(parts=tuple(part.of_rank(rank, self.shard) for part in self.parts))

    def _subset(self, span: range) -> "Weight":
        """Return these of the matrices."""
        parts = tuple(part for matrix in self.each[span.start : span.stop] for part in matrix.parts)
        chosen = None if self.chosen is None else min(self.chosen, len(span))
        return self._replace(parts=parts, matrices=len(span), chosen=chosen)

    def slabs(self, rows: int) -> Iterator["Weight"]:
        """Split into weights of `rows` rows; the last may have fewer. Of a gated matrix, half of each are gates."""
        halves = 2 if self.pack == "gated" else 1
        height, step = self.shape[0] // halves, rows // halves
        for first in range(0, height, step):
            stop = min(first + step, height)
            cut = (self._cut(half * height + first, half * height + stop) for half in range(halves))
            yield self._replace(parts=tuple(chain.from_iterable(cut)))

    def _cut(self, start: int, stop: int) -> Iterator[CheckpointTensor]:
        """Yield what rows start .. stop-1 of the stacked parts are made of."""
        row = 0
        for part in self.parts:
            low, high = max(start - row, 0), min(stop - row, part.shape[0])
            if low < high:
                yield part.rows(low, high)
            row += part.shape[0]


Declared = Mapping[str, Weight]
"""Weights by our names."""


def vector(part: str, length: int, pack: Pack = "plain") -> Weight:
    """Declare a one-dimensional weight that every rank holds, such as a norm's."""
    return Weight((CheckpointTensor(part, (length,)),), pack)


def parts(
    module: str, rows: Mapping[str, int], fused: str | None = None, heads: Sequence[Heads | None] = ()
) -> tuple[CheckpointTensor, ...]:
    """Return what `linear` declares: a layer of the checkpoint for each name and number of rows.

    fused: the one layer of the checkpoint that has all of these rows, in this order; None if each has its own. heads:
    of each layer; ranks divide it by them, along the axis that `linear` is given.
    """
    each = tuple(zip(rows.items(), heads or (None,) * len(rows), strict=True))
    if fused is None:
        return tuple(CheckpointTensor(f"{module}.{name}", (size,), heads=split) for (name, size), split in each)
    stops, total = accumulate(rows.values()), sum(rows.values())
    return tuple(
        CheckpointTensor(f"{module}.{fused}", (size,), stop - size, total, heads=split)
        for ((_, size), split), stop in zip(each, stops, strict=True)
    )


def linear(ours: str, layers: Sequence[CheckpointTensor], columns: int, bias: bool, axis: int, pack: Pack) -> Declared:
    """Declare a fused linear layer of `parts`: its matrix and, if `bias`, its bias.

    axis: the dimension of the matrix that ranks split. A bias is split if the rows are; else the first rank has it.
    """
    matrices = (part._replace(name=f"{part.name}.weight", shape=(*part.shape, columns)) for part in layers)
    declared = {ours: Weight(tuple(matrices), pack, axis)}
    if bias:
        biases = tuple(part._replace(name=f"{part.name}.bias") for part in layers)
        declared[f"{ours}_bias"] = Weight(biases, "plain", 0 if axis == 0 else "first")
    return declared
