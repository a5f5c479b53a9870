"""Sizes: the numbers of rows that the graphs of a function can run.

Our C++ operators give a row the same bits beside any others, so one graph serves any number of rows. Libraries round a
row differently in a larger product. With them a graph has one of few fixed sizes, and each row always the same one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import torch

from ringkv.base.config import EngineConfig
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
        """Return the smallest size for so many rows, or None if there is none."""
        if self.fixed:
            return min((size for size in self.fixed if size >= rows), default=None)
        size = self._rounded_up(max(rows, self.least))
        return size if self.most is None or size <= self.most else None

    @property
    def is_any(self) -> bool:
        return not self.fixed

    @property
    def none(self) -> bool:
        """Whether no number of rows is possible."""
        return self.most is not None and self.most < self._rounded_up(self.least)

    def to_make(self, example: int) -> tuple[int, ...]:
        """Return the sizes to make a graph for. If any is possible, one graph is made with `example` rows."""
        return () if self.none else self.fixed or (example,)

    def _rounded_up(self, rows: int) -> int:
        return -(-rows // self.unit) * self.unit


@dataclass(frozen=True)
class BySize(Generic[T]):
    """Graphs of one function, by size; one graph if any size is possible."""

    sizes: Sizes
    graphs: Mapping[int, T]

    @classmethod
    def of(cls, sizes: Sizes, example: int, make: Callable[[int], T]) -> "BySize[T]":
        """Make the graphs. If any size is possible, one is made with `example` rows."""
        return cls(sizes, {rows: make(rows) for rows in sizes.to_make(example)})

    def __getitem__(self, size: int) -> T:
        return self.graphs[size] if self.sizes.fixed else next(iter(self.graphs.values()))


class EngineSizes(NamedTuple):
    """The sizes of all graphs of an engine. rides: a slot's row may be one of a pass with pieces of prompts."""

    passes: Sizes
    decode: Sizes
    drafts: Sizes
    head: Sizes
    rides: bool

    @classmethod
    def of(cls, config: EngineConfig, weights: ModelWeights) -> "EngineSizes":
        """If ranks divide the slots, each of them has as many rows of a step."""
        slots, unit, drafts = config.slots, config.slot_ranks, config.speculate
        # Only our operators promise that a row's bits depend on the row alone.
        if not (weights.is_packed and is_native("linear")):
            passes, decode = Sizes(fixed_sizes(config.chunk, torch.device(config.device))), Sizes((slots,), unit=unit)
            has_drafts = drafts > 0 and slots * (1 + drafts) <= MOST_WITH_DRAFTS
            heads = (slots, slots * (1 + drafts)) if has_drafts else (slots,)
            return cls(passes, decode, decode if has_drafts else Sizes(most=0, unit=unit), Sizes(heads), rides=False)
        # In groups, few rows round differently. So all steps of an engine have few rows or none have.
        has_few = weights.rounds_few_rows_differently and slots <= FEW
        passes = Sizes(least=FEW + 1 if weights.rounds_few_rows_differently else 1)
        decode = Sizes(least=1 if has_few else passes.least, unit=unit)
        # Tokens of steps with drafts must round as those of steps without, and be few.
        most = (FEW if has_few else MOST_WITH_DRAFTS) // (1 + drafts) if drafts else 0
        return cls(passes, decode, replace(decode, most=most), Sizes(), rides=not has_few)


def fixed_sizes(chunk: int, device: torch.device) -> tuple[int, ...]:
    """Return two sizes on a CPU; on a GPU a chunk's halves, so that a prompt's end is one piece."""
    if device.type == "cuda":
        return _halves(chunk)
    return tuple(sorted({SMALL, chunk})) if chunk % SMALL == 0 else (chunk,)


def _halves(chunk: int) -> tuple[int, ...]:
    """Return a chunk and its halves down to SMALLEST_ON_GPU, the smallest first."""
    is_divided = chunk % 2 == 0 and chunk // 2 >= SMALLEST_ON_GPU
    return (*_halves(chunk // 2), chunk) if is_divided else (chunk,)
