"""IntegerMatrix: a matrix of integers whose groups of a row share a scale and a zero: weight = scale * (q - zero).

The file of each quantiser reads its own layout as one. From it come elements, four-bit groups or 8-bit rows, of any
rows and columns, so ranks read only their slices. In groups, a zero becomes a minimum, -scale * zero in float16.
"""

from typing import Protocol

import torch
from torch import Tensor

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown_names
from ringkv.kernels.byte_groups import HALF, ByteGroups, Minimums
from ringkv.kernels.packing import BLOCK_K
from ringkv.kernels.quantize import Int4Groups, Int8Rows

ROWS = 64  # that are dequantised at a time, within a core's cache
LARGEST = 127  # of int8, which has no -128 in the kernels' tables


class IntegerMatrix(Protocol):
    """A matrix [out, in] on disk. Spans count rows, columns or groups."""

    @property
    def name(self) -> str:
        """What an unquantised checkpoint calls it, such as "model.layers.0.mlp.up_proj.weight"."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the tensors it is made of."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def bits(self) -> int: ...

    @property
    def is_signed(self) -> bool:
        """Whether integers are signed. Unsigned ones exceed them by half of their range."""

    @property
    def group(self) -> int:
        """Elements of a row that share a scale and a zero."""

    @property
    def order(self) -> Tensor | None:
        """int64 [in], the group of each column; None if groups are runs of columns."""

    def values(self, rows: range, columns: range) -> Tensor:
        """Return q, uint8 or int8 [rows, columns]."""

    def scales(self, rows: range, groups: range) -> Tensor:
        """Return float32 [rows, groups]."""

    def zeros(self, rows: range, groups: range) -> Tensor:
        """Return float32 [rows, groups]; the elements are whole numbers."""


def dequantise(matrix: IntegerMatrix, out: Tensor, first: int, column: int) -> None:
    """Fill `out` [n, m] with rows first .. first+n-1 and columns column .. column+m-1, a few rows at a time.

    Elements are computed in float32. Raises BadWeights for scales that are not finite.
    """
    rows, columns = range(first, first + len(out)), range(column, column + out.shape[1])
    groups, whole = _groups_of(matrix, columns)
    scales, zeros = _finite(matrix, matrix.scales(rows, groups)), matrix.zeros(rows, groups)
    if matrix.order is not None:
        scales, zeros = (one[:, matrix.order[whole.start : whole.stop]] for one in (scales, zeros))
    within = slice(columns.start - whole.start, columns.stop - whole.start)
    parts = (one.split(ROWS) for one in (out, matrix.values(rows, whole), scales, zeros))
    for to, q, scale, zero in zip(*parts, strict=True):
        in_groups = q.float().unflatten(1, (scale.shape[1], -1))
        to.copy_(in_groups.sub_(zero[..., None]).mul_(scale[..., None]).flatten(1)[:, within])


def int4_groups(matrix: IntegerMatrix, rows: range, columns: range) -> Int4Groups | None:
    """Return the integers as they are stored, with a scale and a minimum for each 32; None if that cannot hold them.

    It can if they have 4 bits, and each 32 columns from the first on are in one group.
    """
    ends = (matrix.group, columns.start, columns.stop)
    if matrix.bits != 4 or matrix.order is not None or any(one % BLOCK_K for one in ends):
        return None
    groups, _ = _groups_of(matrix, columns)
    group_of = torch.arange(columns.start, columns.stop, BLOCK_K) // matrix.group - groups.start
    scales = matrix.scales(rows, groups)
    minimum = (scales * -matrix.zeros(rows, groups))[:, group_of].half()
    return Int4Groups(
        matrix.values(rows, columns), _finite(matrix, scales[:, group_of].half()), _finite(matrix, minimum)
    )


def int8_rows(matrix: IntegerMatrix, rows: range, columns: range) -> Int8Rows | None:
    """Return integers with a scale per row, -128 as -127; None unless a row is one group of signed 8-bit integers."""
    if matrix.bits != 8 or matrix.group != matrix.shape[1]:
        return None
    q = matrix.values(rows, columns).to(torch.int16) - matrix.zeros(rows, range(1)).to(torch.int16)
    if q.abs().max() > LARGEST + 1:  # asymmetric
        return None
    scales = _finite(matrix, matrix.scales(rows, range(1)))
    return Int8Rows(q.clamp_(-LARGEST, LARGEST).to(torch.int8), scales[:, 0])


def has_byte_groups(matrix: IntegerMatrix) -> bool:
    """Return whether integers of 8 bits have groups of whole blocks. Symmetric ones of whole rows are `int8_rows`."""
    return _has_blocks(matrix) and (matrix.group < matrix.shape[1] or has_minimums(matrix))


def has_minimums(matrix: IntegerMatrix) -> bool:
    """Return whether groups have minimums: those of 4 bits do, those of 8 bits if a zero is not that of signed ones."""
    return matrix.bits == 4 or bool(_signed(matrix, matrix.zeros(*_all(matrix))).any())


def byte_groups(matrix: IntegerMatrix, rows: range, columns: range) -> ByteGroups | None:
    """Return integers of 8 bits as they are stored, with a scale and a minimum for each 32; None if that cannot be.

    A minimum is -scale times the group's zero. Both are exact, or the result is None.
    """
    if not _has_blocks(matrix) or any(one % BLOCK_K for one in (columns.start, columns.stop)):
        return None
    groups, _ = _groups_of(matrix, columns)
    group_of = torch.arange(columns.start, columns.stop, BLOCK_K) // matrix.group - groups.start
    scales, zeros = _finite(matrix, matrix.scales(rows, groups)), _signed(matrix, matrix.zeros(rows, groups))
    if (scales.half().float() != scales).any() or (zeros > LARGEST).any():
        return None
    scale, zero = scales[:, group_of].half(), zeros[:, group_of].to(torch.int8)
    q = _signed(matrix, matrix.values(rows, columns).to(torch.int16)).to(torch.int8)
    minimums = Minimums(-scale, zero) if zero.any() else None
    return ByteGroups(q, scale, torch.ones(len(q), q.shape[1] // HALF, dtype=torch.int8), minimums)


def _has_blocks(matrix: IntegerMatrix) -> bool:
    return matrix.bits == 8 and matrix.order is None and matrix.group % BLOCK_K == 0


def _signed(matrix: IntegerMatrix, values: Tensor) -> Tensor:
    """Return integers of 8 bits as signed ones."""
    return values if matrix.is_signed else values - (LARGEST + 1)


def _all(matrix: IntegerMatrix) -> tuple[range, range]:
    """Return all rows and all groups."""
    return range(matrix.shape[0]), range(matrix.shape[1] // matrix.group)


def _groups_of(matrix: IntegerMatrix, columns: range) -> tuple[range, range]:
    """Return the groups that have these columns, and all columns of theirs; if groups are permuted, all groups."""
    if matrix.order is not None:
        return range(matrix.shape[1] // matrix.group), columns
    groups = range(columns.start // matrix.group, -(-columns.stop // matrix.group))
    return groups, range(groups.start * matrix.group, groups.stop * matrix.group)


def _finite(matrix: IntegerMatrix, values: Tensor) -> Tensor:
    if not torch.isfinite(values).all():
        raise BadWeights(f"the quantised {shown_names([matrix.name])} has scales that are not finite; fetch it again")
    return values
