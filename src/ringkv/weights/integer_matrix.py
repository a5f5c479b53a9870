"""IntegerMatrix: a matrix of integers whose groups of a row share a scale and a zero: weight = scale * (q - zero).

Any rows and columns can be read, as elements, four-bit groups or 8-bit rows, so ranks read their slices only.
In groups, a zero becomes a minimum, -scale * zero in float16. `quantisers` has the layouts of checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown_names
from ringkv.kernels.byte_groups import HALF, ByteGroups
from ringkv.kernels.packing import BLOCK_K
from ringkv.kernels.quantize import Int4Groups, Int8Rows

ROWS = 64  # that are dequantised at a time, within a core's cache
LARGEST = 127  # of int8, which has no -128 in the kernels' tables


class ModuleTensors:
    """The tensors of one quantised linear layer, `module`.SUFFIX, by their suffixes, such as "qweight"."""

    def __init__(self, files: Mapping[str, Any], module: str) -> None:
        self._files, self.module = files, module

    def has(self, suffix: str) -> bool:
        return f"{self.module}.{suffix}" in self._files

    def shape(self, suffix: str, dtypes: Collection[str], dimensions: int = 2) -> tuple[int, ...]:
        """Return a tensor's shape. Raises BadWeights if it is missing or has other dtypes or dimensions."""
        if not self.has(suffix):
            raise self.wrong(f"no {suffix}")
        tensor = self._slice(suffix)
        shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
        if dtype not in dtypes or len(shape) != dimensions or not all(shape):
            raise self.wrong(f"{suffix} {dtype} {list(shape)}")
        return shape

    def read(self, suffix: str, *spans: range) -> Tensor:
        """Copy these places along each dimension of a tensor, or all of it."""
        values: Tensor = self._slice(suffix)[tuple(slice(span.start, span.stop) for span in spans) or slice(None)]
        return values

    def wrong(self, fault: str) -> BadWeights:
        """Return the error for tensors that do not belong together."""
        return BadWeights(f"the quantised layer {shown_names([self.module])} has {fault}; fetch the checkpoint again")

    def _slice(self, suffix: str) -> Any:
        name = f"{self.module}.{suffix}"
        return self._files[name].get_slice(name)


@dataclass(frozen=True)
class IntegerMatrix(ABC):
    """A matrix [out, in] on disk. Spans count rows, columns or groups.

    suffixes: of the tensors that it may be made of. is_signed: whether integers are signed; unsigned ones exceed them
    by half of their range. group: elements of a row that share a scale and a zero. order: int64 [in], the group of each
    column; None if groups are runs of columns.
    """

    suffixes: ClassVar[tuple[str, ...]]
    is_signed: ClassVar[bool] = False

    tensors: ModuleTensors
    shape: tuple[int, int]
    group: int
    bits: int
    order: Tensor | None = None

    @abstractmethod
    def values(self, rows: range, columns: range) -> Tensor:
        """Return q, uint8 or int8 [rows, columns]."""

    @abstractmethod
    def scales(self, rows: range, groups: range) -> Tensor:
        """Return float32 [rows, groups]."""

    @abstractmethod
    def zeros(self, rows: range, groups: range) -> Tensor:
        """Return float32 [rows, groups]; the elements are whole numbers."""

    @property
    def name(self) -> str:
        """What an unquantised checkpoint calls it, such as "model.layers.0.mlp.up_proj.weight"."""
        return f"{self.tensors.module}.weight"

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the tensors it is made of."""
        return tuple(f"{self.tensors.module}.{suffix}" for suffix in self.suffixes if self.tensors.has(suffix))

    def dequantise(self, out: Tensor, first: int, column: int) -> None:
        """Fill `out` [n, m] with rows first .. first+n-1 and columns column .. column+m-1, a few rows at a time.

        Elements are computed in float32. Raises BadWeights for scales that are not finite.
        """
        rows, columns = range(first, first + len(out)), range(column, column + out.shape[1])
        groups, covered = self._groups_of(columns)
        scales, zeros = self._finite(self.scales(rows, groups)), self.zeros(rows, groups)
        if self.order is not None:
            scales, zeros = (each[:, self.order[covered.start : covered.stop]] for each in (scales, zeros))
        within = slice(columns.start - covered.start, columns.stop - covered.start)
        parts = (each.split(ROWS) for each in (out, self.values(rows, covered), scales, zeros))
        for to, q, scale, zero in zip(*parts, strict=True):
            in_groups = q.float().unflatten(1, (scale.shape[1], -1))
            to.copy_(in_groups.sub_(zero[..., None]).mul_(scale[..., None]).flatten(1)[:, within])

    def int4_groups(self, rows: range, columns: range) -> Int4Groups | None:
        """Return the integers as they are stored, with a scale and a minimum for each 32.

        None unless they have 4 bits, and each 32 columns from the first on are in one group.
        """
        ends = (self.group, columns.start, columns.stop)
        if self.bits != 4 or self.order is not None or any(end % BLOCK_K for end in ends):
            return None
        groups, group_of = self._blocks_of(columns)
        scales = self.scales(rows, groups)
        minimum = (scales * -self.zeros(rows, groups))[:, group_of].half()
        return Int4Groups(self.values(rows, columns), self._finite(scales[:, group_of].half()), self._finite(minimum))

    def int8_rows(self, rows: range, columns: range) -> Int8Rows | None:
        """Return integers with a scale per row, -128 as -127; None unless a row is a group of signed 8-bit integers."""
        if self.bits != 8 or self.group != self.shape[1]:
            return None
        q = self.values(rows, columns).to(torch.int16) - self.zeros(rows, range(1)).to(torch.int16)
        if q.abs().max() > LARGEST + 1:  # asymmetric
            return None
        scales = self._finite(self.scales(rows, range(1)))
        return Int8Rows(q.clamp_(-LARGEST, LARGEST).to(torch.int8), scales[:, 0])

    @property
    def has_byte_groups(self) -> bool:
        """Whether integers of 8 bits have groups of whole blocks. Symmetric ones of whole rows are `int8_rows`."""
        return self._has_blocks and (self.group < self.shape[1] or self.has_minimums)

    @property
    def has_minimums(self) -> bool:
        """Whether groups have minimums: those of 4 bits do, those of 8 bits if a zero is not that of signed ones."""
        everywhere = range(self.shape[0]), range(self.shape[1] // self.group)
        return self.bits == 4 or bool(self._signed(self.zeros(*everywhere)).any())

    def byte_groups(self, rows: range, columns: range) -> ByteGroups | None:
        """Return integers of 8 bits as they are stored, with a scale and a minimum for each 32; None if that cannot be.

        A minimum is -scale times the group's zero. Both are exact, or the result is None.
        """
        if not self._has_blocks or any(end % BLOCK_K for end in (columns.start, columns.stop)):
            return None
        groups, group_of = self._blocks_of(columns)
        scales, zeros = self._finite(self.scales(rows, groups)), self._signed(self.zeros(rows, groups))
        if (scales.half().float() != scales).any() or (zeros > LARGEST).any():
            return None
        scale, zero = scales[:, group_of].half(), zeros[:, group_of].to(torch.int8)
        q = self._signed(self.values(rows, columns).to(torch.int16)).to(torch.int8)
        minimums = (-scale, zero) if zero.any() else ()
        return ByteGroups(q, scale, torch.ones(len(q), q.shape[1] // HALF, dtype=torch.int8), *minimums)

    @property
    def _has_blocks(self) -> bool:
        return self.bits == 8 and self.order is None and self.group % BLOCK_K == 0

    def _signed(self, values: Tensor) -> Tensor:
        """Return integers of 8 bits as signed ones."""
        return values if self.is_signed else values - (LARGEST + 1)

    def _groups_of(self, columns: range) -> tuple[range, range]:
        """Return the groups that have these columns, and all columns of theirs; if groups are permuted, all groups."""
        if self.order is not None:
            return range(self.shape[1] // self.group), columns
        groups = range(columns.start // self.group, -(-columns.stop // self.group))
        return groups, range(groups.start * self.group, groups.stop * self.group)

    def _blocks_of(self, columns: range) -> tuple[range, Tensor]:
        """Return the groups that have these columns, and which of them each 32 columns are in."""
        groups, _ = self._groups_of(columns)
        return groups, torch.arange(columns.start, columns.stop, BLOCK_K) // self.group - groups.start

    def _finite(self, values: Tensor) -> Tensor:
        if not torch.isfinite(values).all():
            raise BadWeights(f"the quantised {shown_names([self.name])} has scales that are not finite; fetch it again")
        return values
