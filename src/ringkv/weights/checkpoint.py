"""Checkpoint: the tensors of a safetensors checkpoint, as the elements that they stand for."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown_names
from ringkv.base.stack import Stack
from ringkv.kernels.byte_groups import ByteGroups
from ringkv.kernels.quantize import Int4Groups, Int8Rows
from ringkv.weights import fp8, mxfp4
from ringkv.weights.files import INDEX
from ringkv.weights.fp8 import FP8, SCALES
from ringkv.weights.group_file import GroupFile, divided, int4_groups
from ringkv.weights.group_layout import GROUP, INT4, INT8, GroupLayout
from ringkv.weights.mxfp4 import ROWS, dequantised
from ringkv.weights.open_files import open_file, open_files
from ringkv.weights.quantisers import integer_matrices
from ringkv.weights.shapes import BLOCKS, EXPONENTS, check_shapes, unpacked_shapes

FLOATS = ("F64", "F32", "F16", "BF16")
ALL = slice(None)


class Checkpoint:
    """Named tensors on disk. No tensor is read before `read_into`."""

    def __init__(self, directory: Path) -> None:
        """Map `model.safetensors`, or the shards that `model.safetensors.index.json` names.

        Raises BadWeights if there is none, a shard is missing, or a file is truncated or corrupt.
        """
        self._files = open_files(directory)  # tensor name -> open safetensors file
        self._groups, self._byte_groups = (_group_file(directory, layout) for layout in (INT4, INT8))
        self._integers = integer_matrices(directory, self._files)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def check(self, expected: Mapping[str, tuple[int, ...]], ignorable: Collection[str] = ()) -> None:
        """Raise BadWeights that names missing, unexpected and misshapen tensors.

        `ignorable`: names, or patterns such as `*.rotary_emb.inv_freq`, that may exist and are not loaded.
        """
        shapes = {name: shape for name, shape in self.shapes().items() if not name.endswith(SCALES)}
        integers = self._integers.values()
        replaced = {*self._unused_biases(expected), *(part for matrix in integers for part in matrix.parts)}
        unquantised = {name: shape for name, shape in shapes.items() if name not in replaced}
        unquantised |= {matrix.name: matrix.shape for matrix in integers}
        check_shapes(unpacked_shapes(unquantised), expected, ignorable)
        for groups in (self._groups, self._byte_groups):
            if groups is not None:
                groups.check(shapes)

    def _unused_biases(self, expected: Collection[str]) -> Iterable[str]:
        """Return biases of zeros that the model does not have: some quantisers write one for every layer."""
        biases = {f"{name.removesuffix('.weight')}.bias" for name in self._integers} & self._files.keys() - set(
            expected
        )
        return (name for name in biases if not self._files[name].get_tensor(name).any())

    def read_into(self, name: str, out: Tensor, first: int = 0, stack: Stack | None = None, column: int = 0) -> None:
        """Copy a tensor's rows from `first` on and columns from `column` on, as many as `out` has; convert their dtype.

        `out` may have any device, any float dtype and any strides. stack: the matrix whose rows these are, of a tensor
        of several.

        Raises UnsupportedModel for a tensor that is neither floating point nor fp8 in blocks.
        """
        if name in self._integers:
            return self._integers[name].dequantise(out, first, column)
        if stack and name not in self._files:
            return self._read_mxfp4(name, out, first, stack, column)
        rows = self._files[name].get_slice(name)
        dtype = rows.get_dtype()
        if dtype not in (*FLOATS, FP8):
            raise UnsupportedModel(
                f"tensor {shown_names([name])} is {dtype}; ringkv reads {', '.join(FLOATS)} and {FP8} in safetensors"
            )
        with torch.no_grad():
            if dtype == FP8:
                fp8.dequantise(rows, self._scales(name, rows.get_shape()), first, out, column)
            elif stack:
                out.copy_(_of_stack(rows, stack, first, out, column))
            else:
                out.copy_(rows[first : first + len(out), *_columns(out, column)])  # a view of the mapped file

    def _read_mxfp4(self, name: str, out: Tensor, first: int, stack: Stack, column: int) -> None:
        parts, columns = self._mxfp4_parts(name, stack.span(first, len(out)), stack), _columns(out, column)
        for rows, *stored in zip(*(each.split(ROWS) for each in (out, *parts)), strict=True):
            rows.copy_(dequantised(*stored)[:, *columns])

    def _mxfp4_parts(self, name: str, span: slice, stack: Stack) -> list[Tensor]:
        """Return blocks uint8 [n, in / 32, 16] and exponents uint8 [n, in / 32] of these rows."""
        parts = []
        for part in (f"{name}{BLOCKS}", f"{name}{EXPONENTS}"):
            tensor = self._files[part].get_slice(part)
            if tensor.get_dtype() != "U8":
                raise BadWeights(f"tensor {shown_names([part])} is {tensor.get_dtype()}, not U8; fetch it again")
            parts.append(tensor[stack.at, span.start : span.stop][:: span.step])
        return parts

    def _scales(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return the scales of an fp8 matrix. Raises BadWeights if there is not one for each block."""
        file = self._files.get(f"{name}{SCALES}")
        scales = torch.empty(0) if file is None else file.get_tensor(f"{name}{SCALES}").float()
        if scales.shape != fp8.blocks(shape):
            raise BadWeights(
                f"tensor {shown_names([name])} is {FP8} and needs {SCALES} of shape {fp8.blocks(shape)}, not "
                f"{tuple(scales.shape)}; fetch the checkpoint again"
            )
        return scales

    def groups(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Int4Groups | None:
        """Return part of a four-bit matrix as its file stored it; None if there is none, or no whole groups."""
        if matrix := self._integers.get(name):
            return matrix.int4_groups(*_spans(matrix.shape, rows, columns))
        parts = self._groups.read(name, rows, columns) if self._groups else None
        return None if parts is None else int4_groups(*parts)

    def byte_groups(
        self, name: str, rows: slice = ALL, columns: slice = ALL, stack: Stack | None = None
    ) -> ByteGroups | None:
        """Return part of a matrix of 5 to 8 bits, or in MXFP4, without rounding.

        None if there is none, the columns are not whole groups, or a scale is out of the format's range.
        """
        if matrix := self._integers.get(name):
            return matrix.byte_groups(*_spans(matrix.shape, rows, columns))
        if stack is not None and self._is_mxfp4(name):
            return self._mxfp4_groups(name, rows, columns, stack)
        parts = self._byte_groups.read(name, rows, columns) if self._byte_groups else None
        return None if parts is None else ByteGroups(*parts)

    def has_byte_groups(self, name: str) -> bool:
        """Return whether a matrix is stored in groups of 5 to 8 bits, or in MXFP4."""
        if matrix := self._integers.get(name):
            return matrix.has_byte_groups
        return self._is_mxfp4(name) or bool(self._byte_groups and self._byte_groups.has(name))

    def has_minimums(self, name: str) -> bool:
        """Return whether the groups of a matrix have minimums, those of 4 bits included."""
        if matrix := self._integers.get(name):
            return matrix.has_minimums
        in_bytes = bool(self._byte_groups and self._byte_groups.has_minimums(name))
        return in_bytes or bool(self._groups and self._groups.has(name))

    def _is_mxfp4(self, name: str) -> bool:
        return f"{name}{BLOCKS}" in self._files

    def _mxfp4_groups(self, name: str, rows: slice, columns: slice, stack: Stack) -> ByteGroups | None:
        if (groups := divided(columns, GROUP)) is None:
            return None
        parts = self._mxfp4_parts(name, stack.span(rows.start, rows.stop - rows.start), stack)
        return mxfp4.byte_groups(*(part[:, groups] for part in parts))

    def has_integers(self, name: str) -> bool:
        """Return whether a matrix is stored as integers, so that reading it in bfloat16 rounds."""
        return name in self._integers

    @property
    def permuted(self) -> list[str]:
        """Names of matrices whose groups are not runs of columns, so that `groups` has none."""
        return [name for name, matrix in self._integers.items() if matrix.order is not None]

    def int8_rows(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Int8Rows | None:
        """Return part of a matrix that is stored in 8 bits with a scale per row, -128 as -127; None if it is not."""
        matrix = self._integers.get(name)
        return matrix.int8_rows(*_spans(matrix.shape, rows, columns)) if matrix else None


def _group_file(directory: Path, layout: GroupLayout) -> GroupFile | None:
    path = directory / layout.file
    is_there = not (directory / INDEX).is_file() and path.is_file()
    return GroupFile(open_file(path), layout) if is_there else None


def _spans(shape: tuple[int, int], *slices: slice) -> list[range]:
    return [range(size)[span] for size, span in zip(shape, slices, strict=True)]


def _columns(out: Tensor, column: int) -> tuple[slice, ...]:
    """Return the columns of a matrix that `out` has, from `column` on; a vector has none."""
    return (slice(column, column + out.shape[1]),) if out.dim() > 1 else ()


def _of_stack(tensor: Any, stack: Stack, first: int, out: Tensor, column: int) -> Tensor:
    """Return rows first .. of a matrix, [n, in], or of a bias, [n]."""
    span, columns = stack.span(first, len(out)), _columns(out, column)
    rows = slice(span.start, span.stop)  # safetensors slices without steps
    is_transposed = stack.transposed and out.dim() > 1
    part: Tensor = tensor[(stack.at, *columns, rows) if is_transposed else (stack.at, rows, *columns)]
    return (part.T if is_transposed else part)[:: span.step]
