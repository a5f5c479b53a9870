"""Checkpoint: a memory-mapped safetensors checkpoint, single or sharded.

Only safetensors are read: pickles can run code, so ringkv never opens one.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.json_file import read_object
from ringkv.base.shown import one_line, shown_names
from ringkv.base.stack import Stack
from ringkv.weights.files import GROUPS, INDEX, SINGLE
from ringkv.weights.fp8 import FP8, SCALES, blocks, dequantise
from ringkv.weights.group_file import GroupFile
from ringkv.weights.mxfp4 import ROWS, dequantised
from ringkv.weights.mxfp4_shapes import BLOCKS, EXPONENTS, unpacked_shapes
from ringkv.weights.shapes import check_shapes

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")
LONGEST_NAME = 255  # bytes of a file's name
ALL = slice(None)


def open_checkpoint(directory: Path) -> "Checkpoint":
    """Map `model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises BadWeights if there is none, a shard is missing, or a file is truncated or corrupt.
    """
    if (directory / INDEX).is_file():
        return Checkpoint(_open_shards(directory))
    if not (directory / SINGLE).is_file():
        raise BadWeights(_nothing_to_open(directory))
    file = _open(directory / SINGLE)
    groups = GroupFile(_open(directory / GROUPS)) if (directory / GROUPS).is_file() else None
    return Checkpoint(dict.fromkeys(file.keys(), file), groups)


class Checkpoint:
    """Named tensors on disk. No tensor is read before `read_into`."""

    def __init__(self, files: Mapping[str, Any], groups: GroupFile | None = None) -> None:
        self._files, self._groups = files, groups  # tensor name -> open safetensors file

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def check(self, expected: Mapping[str, tuple[int, ...]], ignorable: Collection[str] = ()) -> None:
        """Raise BadWeights that names missing, unexpected and misshapen tensors.

        `ignorable`: names, or patterns such as `*.rotary_emb.inv_freq`, that may exist and are not loaded.
        """
        shapes = {name: shape for name, shape in self.shapes().items() if not name.endswith(SCALES)}
        check_shapes(unpacked_shapes(shapes), expected, ignorable)
        if self._groups is not None:
            self._groups.check(shapes)

    def read_into(self, name: str, out: Tensor, first: int = 0, stack: Stack | None = None, column: int = 0) -> None:
        """Copy a tensor's rows from `first` on and columns from `column` on, as many as `out` has; convert their dtype.

        `out` may have any device, any float dtype and any strides. stack: the matrix whose rows these are, of a tensor
        of several.

        Raises UnsupportedModel for a tensor that is neither floating point nor fp8 in blocks.
        """
        if stack and name not in self._files:
            return self._read_mxfp4(name, out, first, stack, column)
        rows = self._files[name].get_slice(name)
        kind = rows.get_dtype()
        if kind not in (*FLOATS, FP8):
            raise UnsupportedModel(
                f"tensor {shown_names([name])} is {kind}; ringkv reads {', '.join(FLOATS)} and {FP8} in safetensors"
            )
        with torch.no_grad():
            if kind == FP8:
                dequantise(rows, self._scales(name, rows.get_shape()), first, out, column)
            elif stack:
                out.copy_(_of_stack(rows, stack, first, out, column))
            else:
                out.copy_(rows[first : first + len(out), *_columns(out, column)])  # a view of the mapped file

    def _read_mxfp4(self, name: str, out: Tensor, first: int, stack: Stack, column: int) -> None:
        span, columns = stack.span(first, len(out)), _columns(out, column)
        found = []
        for one in (f"{name}{BLOCKS}", f"{name}{EXPONENTS}"):
            tensor = self._files[one].get_slice(one)
            if tensor.get_dtype() != "U8":
                raise BadWeights(f"tensor {shown_names([one])} is {tensor.get_dtype()}, not U8; fetch it again")
            found.append(tensor[stack.at, span.start : span.stop][:: span.step])
        for rows, *parts in zip(*(one.split(ROWS) for one in (out, *found)), strict=True):
            rows.copy_(dequantised(*parts)[:, *columns])

    def _scales(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return the scales of an fp8 matrix. Raises BadWeights if there is not one for each block."""
        file = self._files.get(f"{name}{SCALES}")
        scales = torch.empty(0) if file is None else file.get_tensor(f"{name}{SCALES}").float()
        if scales.shape != blocks(shape):
            raise BadWeights(
                f"tensor {shown_names([name])} is {FP8} and needs {SCALES} of shape {blocks(shape)}, not "
                f"{tuple(scales.shape)}; fetch the checkpoint again"
            )
        return scales

    def groups(self, name: str, rows: slice = ALL, columns: slice = ALL) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return part of a four-bit matrix as its GGUF file stored it; None if there is none, or no whole groups.

        q uint8 [out, in], 0 to 15; scale and minimum float16 [out, in / 32], one of each per 32 elements of a row.
        """
        return None if self._groups is None else self._groups.read(name, rows, columns)


def _columns(out: Tensor, column: int) -> tuple[slice, ...]:
    """Return the columns of a matrix that `out` has, from `column` on; a vector has none."""
    return (slice(column, column + out.shape[1]),) if out.dim() > 1 else ()


def _of_stack(tensor: Any, stack: Stack, first: int, out: Tensor, column: int) -> Tensor:
    """Return rows first .. of a matrix, [n, in], or of a bias, [n]."""
    span, columns = stack.span(first, len(out)), _columns(out, column)
    rows = slice(span.start, span.stop)  # safetensors slices without steps
    is_transposed = stack.transposed and out.dim() > 1
    found: Tensor = tensor[(stack.at, *columns, rows) if is_transposed else (stack.at, rows, *columns)]
    return (found.T if is_transposed else found)[:: span.step]


def _open(path: Path) -> Any:
    """Return a `safetensors.safe_open`, which checks the header and the file's length."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise BadWeights(f"{path} ({size} bytes) is truncated or corrupt ({one_line(error)}); fetch it again") from None


def _open_shards(directory: Path) -> dict[str, Any]:
    shard_of = _read_index(directory / INDEX)
    names = sorted(set(shard_of.values()))
    if absent := [name for name in names if not _is_inside(directory, name)]:
        raise BadWeights(
            f"{len(absent)} of {len(names)} shards are missing in {directory}: {shown_names(absent)}; fetch them"
        )
    files = {name: _open(directory / name) for name in names}
    contents = {name: set(file.keys()) for name, file in files.items()}
    if lost := [tensor for tensor, shard in shard_of.items() if tensor not in contents[shard]]:
        raise BadWeights(
            f"{INDEX} names {len(lost)} tensors that its shards do not contain: {shown_names(lost)}; fetch it again"
        )
    return {tensor: files[shard] for tensor, shard in shard_of.items()}


def _is_inside(directory: Path, name: str) -> bool:
    """Return whether this is the name of a file in the directory itself."""
    is_name = Path(name).name == name and "\0" not in name and len(name.encode(errors="replace")) <= LONGEST_NAME
    return is_name and (directory / name).is_file()


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise BadWeights(f"{path} is not a safetensors index: its weight_map names no files; fetch it again")
    return weight_map


def _nothing_to_open(directory: Path) -> str:
    pickles = [path.name for pattern in PICKLES for path in sorted(directory.glob(pattern))]
    if pickles:
        return (
            f"{directory} has its weights as pickle only ({shown_names(pickles)}), which can run code and is never "
            "opened; fetch the model's safetensors, or a GGUF"
        )
    return f"{directory} has neither {SINGLE} nor {INDEX}; fetch the model's safetensors"
