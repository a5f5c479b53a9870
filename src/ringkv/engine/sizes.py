"""Sizes: the numbers of rows that a family of graphs can run, and the graphs.

Our C++ operators give a row the same bits beside any others, so one graph serves any number of rows. Libraries round a
row differently in a larger product. With them a graph has one of few fixed sizes, and each row always the same one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import torch

from ringkv.engine.load import ModelWeights
from ringkv.kernels.library import is_native

FEW = 8  # rows up to which kernels/cpu/linear.cpp does not widen four-bit weights
MOST_WITH_DRAFTS = 32  # tokens of a step; with more, multiplying takes longer than reading the weights
SMALL = 64  # the fixed size for the ends of prompts on a CPU; a chunk must be a multiple of it
SMALLEST_ON_GPU = 128  # fewer tokens take as long, because reading the weights bounds the time

T = TypeVar("T")


@dataclass(frozen=True)
class Sizes:
    """fixed: the possible numbers, the smallest first; if there are none, any from `least` to `most` is possible.

    unit: any of these is a multiple of it.
    """

    fixed: tuple[int, ...] = ()
    least: int = 1
    most: int | None = None
    unit: int = 1

    def fit(self, rows: int) -> int | None:
        """Return the smallest size for so many rows; None if there is none."""
        if self.fixed:
            return min((size for size in self.fixed if size >= rows), default=None)
        size = self._whole(max(rows, self.least))
        return size if self.most is None or size <= self.most else None

    @property
    def is_any(self) -> bool:
        return not self.fixed

    @property
    def none(self) -> bool:
        """Whether no number of rows is possible."""
        return self.most is not None and self.most < self._whole(self.least)

    def to_make(self, example: int) -> tuple[int, ...]:
        """Return the sizes to make a graph for. If any is possible, one graph is made with `example` rows."""
        return () if self.none else self.fixed or (example,)

    def _whole(self, rows: int) -> int:
        return -(-rows // self.unit) * self.unit


@dataclass(frozen=True)
class Family(Generic[T]):
    """Graphs of one function, by size; one graph if any size is possible."""

    sizes: Sizes
    graphs: Mapping[int, T]

    def __getitem__(self, size: int) -> T:
        return self.graphs[size] if self.sizes.fixed else next(iter(self.graphs.values()))


class EngineSizes(NamedTuple):
    """The sizes of all families of an engine. rides: a slot's row may be one of a pass with pieces of prompts."""

    passes: Sizes
    decode: Sizes
    drafts: Sizes
    head: Sizes
    rides: bool

    @classmethod
    def of(
        cls, chunk: int, device: torch.device, slots: int, weights: ModelWeights, drafts: int, slot_ranks: int = 1
    ) -> "EngineSizes":
        """slot_ranks: ranks that divide the slots. Each has as many rows of a step."""
        sizes = cls._of(chunk, device, slots, weights, drafts)
        decode, drafting = replace(sizes.decode, unit=slot_ranks), replace(sizes.drafts, unit=slot_ranks)
        return sizes._replace(decode=decode, drafts=drafting)

    @classmethod
    def _of(cls, chunk: int, device: torch.device, slots: int, weights: ModelWeights, drafts: int) -> "EngineSizes":
        if not fits_any_rows(weights):
            decode, drafting = Sizes((slots,)), _fixed_drafts(slots, drafts)
            heads = sorted({slots, *(size * (1 + drafts) for size in drafting.fixed)})
            return cls(Sizes(fixed_sizes(chunk, device)), decode, drafting, Sizes(tuple(heads)), rides=False)
        if not weights.rounds_few_rows_differently:
            return cls(Sizes(), Sizes(), _drafts(1, MOST_WITH_DRAFTS, drafts), Sizes(), rides=True)
        # In groups, few rows round differently. So all steps of an engine have few rows or none have.
        if slots <= FEW:
            return cls(Sizes(least=FEW + 1), Sizes(), _drafts(1, FEW, drafts), Sizes(), rides=False)
        most = _drafts(FEW + 1, MOST_WITH_DRAFTS, drafts)
        return cls(Sizes(least=FEW + 1), Sizes(least=FEW + 1), most, Sizes(), rides=True)


def fits_any_rows(weights: ModelWeights) -> bool:
    """Whether our operators multiply all matrices. Only they promise that a row's bits depend on the row alone."""
    return weights.is_packed and is_native("linear")


def fixed_sizes(chunk: int, device: torch.device) -> tuple[int, ...]:
    """Return two sizes on a CPU; on a GPU a chunk's halves, so that a prompt's end is one piece."""
    if device.type == "cuda":
        return _halves(chunk)
    return tuple(sorted({SMALL, chunk})) if chunk % SMALL == 0 else (chunk,)


def _halves(chunk: int) -> tuple[int, ...]:
    """Return a chunk and its halves down to SMALLEST_ON_GPU, the smallest first."""
    is_whole = chunk % 2 == 0 and chunk // 2 >= SMALLEST_ON_GPU
    return (*_halves(chunk // 2), chunk) if is_whole else (chunk,)


def _drafts(least: int, tokens: int, drafts: int) -> Sizes:
    """Return the rows of steps with drafts: their tokens must round as those of steps without, and be few."""
    return Sizes(least=least, most=tokens // (1 + drafts) if drafts else 0)


def _fixed_drafts(slots: int, drafts: int) -> Sizes:
    return Sizes((slots,)) if drafts and slots * (1 + drafts) <= MOST_WITH_DRAFTS else Sizes(most=0)
