"""slab: some rows of a weight, read from the checkpoint's tensors that it is made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ringkv.kernels import byte_groups
from ringkv.kernels.byte_groups import ByteGroups
from ringkv.kernels.formats import WeightFormat
from ringkv.kernels.quantize import stacked
from ringkv.models.weights import CheckpointTensor
from ringkv.weights.checkpoint import Checkpoint

CPU = torch.device("cpu")


def read(
    checkpoint: Checkpoint, parts: Sequence[CheckpointTensor], dtype: torch.dtype, device: torch.device = CPU
) -> Tensor:
    """Return the parts, stacked along their first dimension."""
    sizes = [part.shape[0] for part in parts]
    stacked = torch.empty(sum(sizes), *parts[0].shape[1:], dtype=dtype, device=device)
    for part, rows in zip(parts, stacked.split(sizes), strict=True):
        checkpoint.read_into(part.name, rows, part.first, part.stack, part.column)
    return stacked


def read_to_pack(
    checkpoint: Checkpoint, parts: Sequence[CheckpointTensor], format: WeightFormat, dtype: torch.dtype
) -> Any:
    """Return what a format packs: values as the checkpoint stores them if it has some, else rows in `dtype`.

    Integers of another format than this are quantised again from float32.
    """
    if format.quantise is None:
        return read(checkpoint, parts, dtype)
    stored = [_STORED_AS[format.dtype](checkpoint, part.name, *_spans(part)) for part in parts]
    if any(checkpoint.has_integers(part.name) for part in parts):
        dtype = torch.float32
    if all(rows is None for rows in stored):
        return read(checkpoint, parts, dtype)
    pairs = zip(parts, stored, strict=True)
    return stacked([format.quantise(read(checkpoint, [part], dtype)) if rows is None else rows for part, rows in pairs])


def read_byte_groups(checkpoint: Checkpoint, parts: Sequence[CheckpointTensor], has_minimums: bool) -> ByteGroups:
    """Return matrices as groups of bytes: as the checkpoint stores them, or quantised from float32 if it cannot be."""
    each = (_byte_groups(checkpoint, part) for part in parts)
    return stacked([groups.with_minimums() if has_minimums else groups for groups in each])


def _byte_groups(checkpoint: Checkpoint, part: CheckpointTensor) -> ByteGroups:
    if (stored := checkpoint.byte_groups(part.name, *_spans(part), part.stack)) is not None:
        return stored
    if (four_bits := checkpoint.groups(part.name, *_spans(part))) is not None:
        return byte_groups.of_int4(four_bits)
    return byte_groups.nearest(read(checkpoint, [part], torch.float32))


_STORED_AS: Mapping[torch.dtype, Callable[[Checkpoint, str, slice, slice], Any]] = {
    torch.uint8: Checkpoint.groups,
    torch.int8: Checkpoint.int8_rows,
}
"""How to read what a checkpoint stores in the format with this dtype, or None if it stores something else."""


def _spans(part: CheckpointTensor) -> tuple[slice, slice]:
    """Return the rows and columns of a matrix that a part has."""
    rows, columns = part.shape
    return slice(part.first, part.first + rows), slice(part.column, part.column + columns)
