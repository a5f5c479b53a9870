"""Checkpoint to weights: rows are read, packed and put in their place, a slab at a time.

Peak memory is the weights plus one slab, and one packed matrix of a stack of experts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.config import Weights
from ringkv.base.progress import Progress
from ringkv.base.ranks import ONE_RANK, Rank
from ringkv.kernels.formats import FORMATS, WeightFormat
from ringkv.kernels.packing import PANEL_N
from ringkv.kernels.quantize import Int4Groups, stacked
from ringkv.models.base import ModelConfig
from ringkv.models.weights import CheckpointTensor, Pack, Weight
from ringkv.weights.checkpoint import Checkpoint, open_checkpoint

SLAB = 1024  # rows; whole panels, and whole blocks of an fp8 checkpoint


class Stored(NamedTuple):
    """Formats of a layer's matrices, and of its tables: embedding and vocabulary projection, which need more bits."""

    layers: str
    tables: str


STORED: Mapping[Weights, Stored] = {
    "bf16": Stored("bf16", "bf16"),
    "int8": Stored("int8", "int8"),
    "int4": Stored("int4", "int8"),
}


class ModelWeights:
    """All tensors of a model: `shared` ones by name, and one dictionary per layer."""

    def __init__(self, shared: dict[str, Tensor], layers: list[dict[str, Tensor]]) -> None:
        self.shared, self.layers = shared, layers

    @property
    def is_packed(self) -> bool:
        """Whether every matrix is stored in panels for the C++ kernels."""
        return not any(tensor.dim() == 2 for tensor in self._tensors())

    def is_packed_in(self, dtype: torch.dtype) -> bool:
        """Whether some matrix is stored in panels of this dtype."""
        return any(tensor.dim() > 2 and tensor.dtype == dtype for tensor in self._tensors())

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> Iterator[Tensor]:
        return (tensor for group in (self.shared, *self.layers) for tensor in group.values())


def load(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    tell: Progress,
    weights: Weights = "bf16",
    rank: Rank = ONE_RANK,
) -> ModelWeights:
    """Read what a rank has of a model directory.

    Raises BadWeights, naming the tensors, if the checkpoint does not match its config.
    """
    checkpoint = open_checkpoint(folder)
    groups = [config.shared_weights(), *(config.layer_weights(i) for i in range(config.num_layers))]
    checkpoint.check(config.tensors, config.ignored)
    read, target = [], Target(dtype, device, STORED[weights])
    for done, group in enumerate(groups):
        tell(done, len(groups), "loading weights")
        read.append({name: _load(checkpoint, weight.of_rank(rank), target) for name, weight in group.items()})
    tell(len(groups), len(groups), "loading weights")
    return ModelWeights(read[0], read[1:])


class Target(NamedTuple):
    """How weights are stored in memory."""

    dtype: torch.dtype
    device: torch.device
    stored: Stored

    def empty(self, weight: Weight, rows: int) -> Tensor:
        """Allocate rows of a weight."""
        dtype = torch.float32 if weight.pack == "exact" else self.dtype
        return torch.empty(rows, *weight.shape[1:], dtype=dtype, device=self.device)

    def format(self, pack: Pack) -> WeightFormat:
        """Return the format in which a weight is packed if its shape allows."""
        return FORMATS[{"table": self.stored.tables, "router": "bf16"}.get(pack, self.stored.layers)]


def _load(checkpoint: Checkpoint, weight: Weight, target: Target) -> Tensor:
    """Read a weight's parts, and pack it for the operators if its shape allows."""
    if weight.is_zero:
        return target.empty(weight, weight.shape[0]).zero_()
    if weight.matrices > 1:
        return _stack(weight.matrices, (_load(checkpoint, each, target) for each in weight.each))
    return _LOADERS[weight.pack](checkpoint, weight, target)


def _read(checkpoint: Checkpoint, weight: Weight, target: Target) -> Tensor:
    whole = target.empty(weight, weight.shape[0])
    for part, rows in _rows(weight, whole):
        checkpoint.read_into(part.name, rows, part.first, part.stack, part.column)
    return whole


def _transposed(checkpoint: Checkpoint, weight: Weight, target: Target) -> Tensor:
    format, matrix = target.format(weight.pack), _read(checkpoint, weight, target).T.contiguous()
    return format.pack(matrix) if format.fits(matrix) else matrix


def _router(checkpoint: Checkpoint, weight: Weight, target: Target) -> Tensor:
    """Return a router's matrix [E, hidden] or its bias [E], with rows of zeros after it up to whole panels."""
    format, whole = target.format(weight.pack), _read(checkpoint, weight, target)
    padded = torch.nn.functional.pad(whole, (*[0, 0] * (whole.dim() - 1), 0, -len(whole) % (2 * PANEL_N)))
    return format.pack(padded) if format.fits(padded) else padded


def _panels(checkpoint: Checkpoint, weight: Weight, target: Target) -> Tensor:
    """Read and pack a matrix by slabs of its rows."""
    format = target.format(weight.pack)
    if not format.fits(target.empty(weight, rows=1).expand(weight.shape)):
        return _read(checkpoint, weight, target)
    pack = format.pack_gated if weight.pack == "gated" else format.pack
    whole, at = torch.empty(0), 0
    for slab in weight.slabs(SLAB):
        packed = pack(_unpacked(checkpoint, slab, format, target))
        if not at:
            whole = packed.new_empty(len(packed) * weight.shape[0] // slab.shape[0], *packed.shape[1:])
        whole[at : at + len(packed)] = packed
        at += len(packed)
    return whole


_LOADERS: Mapping[Pack, Callable[[Checkpoint, Weight, Target], Tensor]] = {
    "plain": _read,
    "exact": _read,
    "transposed": _transposed,
    "router": _router,
    "matrix": _panels,
    "gated": _panels,
    "table": _panels,
}


def _unpacked(checkpoint: Checkpoint, slab: Weight, format: WeightFormat, target: Target) -> Tensor | Int4Groups:
    """Return what a format packs: rows, or their groups if it has groups."""
    if format.group is None:
        return _read(checkpoint, slab, target)
    rows = _rows(slab, target.empty(slab, slab.shape[0]))
    return stacked([_groups(checkpoint, part, some, format.group) for part, some in rows])


def _stack(count: int, matrices: Iterable[Tensor]) -> Tensor:
    """Stack so many matrices along their first dimension. One at a time is held beside the result."""
    whole = torch.empty(0)
    for at, matrix in enumerate(matrices):
        if not at:
            whole = matrix.new_empty(count, *matrix.shape)
        whole[at] = matrix
    return whole.flatten(0, 1)


def _rows(weight: Weight, whole: Tensor) -> Iterator[tuple[CheckpointTensor, Tensor]]:
    """Return each part with its rows of `whole`."""
    return zip(weight.parts, whole.split([part.shape[0] for part in weight.parts]), strict=True)


def _groups(
    checkpoint: Checkpoint, part: CheckpointTensor, rows: Tensor, group: Callable[[Tensor], Int4Groups]
) -> Int4Groups:
    """Return quantization groups from the checkpoint if it has them, else computed from its elements in `rows`."""
    columns = slice(part.column, part.column + rows.shape[1])
    if known := checkpoint.groups(part.name, slice(part.first, part.first + len(rows)), columns):
        return Int4Groups(*known)
    checkpoint.read_into(part.name, rows, part.first, part.stack, part.column)
    return group(rows)
