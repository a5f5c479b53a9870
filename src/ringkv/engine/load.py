"""Checkpoint to weights: rows are read, packed and put in their place, a slab at a time.

Peak memory is the weights plus one slab, and one packed matrix of a stack of experts.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ringkv.base.config import Activations, Weights
from ringkv.base.progress import Progress
from ringkv.base.ranks import ONE_RANK, Rank
from ringkv.base.shown import shown_names
from ringkv.engine import slab
from ringkv.engine.grouped import Grouped, in_byte_groups
from ringkv.kernels.formats import FORMATS, WeightFormat, format_of
from ringkv.kernels.packing import PANEL_N
from ringkv.models.base import ModelConfig
from ringkv.models.weights import Pack, Weight
from ringkv.weights.checkpoint import Checkpoint, open_checkpoint

log = logging.getLogger(__name__)
PERMUTED = (
    "the groups of %d matrices are permuted (GPTQ's desc_act, or actorder): int4 quantises them again, int8 and bf16 "
    "are closer to the checkpoint: %s"
)
SLAB = 1024  # rows; whole panels, and whole blocks of an fp8 checkpoint


class Stored(NamedTuple):
    """Formats of a layer's matrices, and of its tables: embedding and vocabulary projection, which need more bits.

    heads: of the matrices of single heads, whose operators have bfloat16 rows. Tables have them, too: prefill projects
    one row of a prompt, so int8 rows would lose accuracy and save little. groups: of a layer's matrices that the
    checkpoint has in 5 to 8 bits; None: these are quantised like others.
    """

    layers: str
    tables: str
    heads: str
    groups: str | None = None


STORED: Mapping[tuple[Weights, Activations], Stored] = {
    ("bf16", "16-bit"): Stored("bf16", "bf16", "bf16"),
    ("int8", "16-bit"): Stored("int8", "int8", "int8", "int8-groups"),
    ("int4", "16-bit"): Stored("int4", "int8", "int4"),
    ("int8", "int8"): Stored("w8a8", "int8", "int8", "int8-groups-a8"),
    ("int4", "int8"): Stored("w4a8", "int8", "int4"),
    ("int4", "int4"): Stored("w4a4", "int8", "int4"),
}


class ModelWeights:
    """All tensors of a model: `shared` ones by name, and one dictionary per layer."""

    def __init__(self, shared: dict[str, Tensor], layers: list[dict[str, Tensor]]) -> None:
        self.shared, self.layers = shared, layers

    @property
    def is_packed(self) -> bool:
        """Whether every matrix is stored in panels for the C++ kernels."""
        return not any(tensor.dim() == 2 for tensor in self._tensors())

    @property
    def rounds_few_rows_differently(self) -> bool:
        """Whether some matrix is stored in groups, which few rows are multiplied with in another way than many."""
        return any(tensor.dim() > 2 and format_of(tensor).has_groups for tensor in self._tensors())

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
    activations: Activations = "16-bit",
) -> ModelWeights:
    """Read what a rank has of a model directory.

    Raises BadWeights, naming the tensors, if the checkpoint does not match its config.
    """
    checkpoint = open_checkpoint(folder)
    groups = [config.shared_weights(), *(config.layer_weights(i) for i in range(config.num_layers))]
    checkpoint.check(config.tensors, config.ignored)
    if weights == "int4" and (names := checkpoint.permuted):
        log.warning(PERMUTED, len(names), shown_names(names))
    read, target = [], Target(dtype, device, STORED[weights, activations])
    kinds = ("", *config.kinds)  # "": the shared weights
    grouped = in_byte_groups(checkpoint, list(zip(kinds, groups, strict=True))) if target.stored.groups else {}
    for done, (kind, group) in enumerate(zip(kinds, groups, strict=True)):
        tell(done, len(groups), "loading weights")
        targets = {name: target._replace(grouped=grouped.get((kind, name))) for name in group}
        read.append({name: _load(checkpoint, one.of_rank(rank), targets[name]) for name, one in group.items()})
    tell(len(groups), len(groups), "loading weights")
    return ModelWeights(read[0], read[1:])


class Target(NamedTuple):
    """How weights are stored in memory. grouped: of a matrix in groups of bytes; None: it has another format."""

    dtype: torch.dtype
    device: torch.device
    stored: Stored
    grouped: Grouped | None = None

    def dtype_of(self, weight: Weight) -> torch.dtype:
        """Return the dtype of a weight before it is packed."""
        return torch.float32 if weight.pack == "exact" else self.dtype

    def empty(self, weight: Weight, rows: int) -> Tensor:
        """Allocate rows of a weight."""
        return torch.empty(rows, *weight.shape[1:], dtype=self.dtype_of(weight), device=self.device)

    def format(self, pack: Pack) -> WeightFormat:
        """Return the format in which a weight is packed if its shape allows."""
        if self.grouped and self.stored.groups:
            return FORMATS[self.stored.groups]
        heads = self.stored.heads
        other = {"table": self.stored.tables, "router": "bf16", "by_head": heads, "transposed": heads}
        return FORMATS[other.get(pack, self.stored.layers)]


def _load(checkpoint: Checkpoint, weight: Weight, target: Target) -> Tensor:
    """Read a weight's parts, and pack it for the operators if its shape allows."""
    if weight.is_zero:
        return target.empty(weight, weight.shape[0]).zero_()
    if weight.matrices > 1:
        return _stack(weight.matrices, (_load(checkpoint, each, target) for each in weight.each))
    return _LOADERS[weight.pack](checkpoint, weight, target)


def _read(checkpoint: Checkpoint, weight: Weight, target: Target) -> Tensor:
    return slab.read(checkpoint, weight.parts, target.dtype_of(weight), target.device)


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
    for rows in weight.slabs(SLAB):
        packed = pack(_to_pack(checkpoint, rows, format, target))
        if not at:
            whole = packed.new_empty(len(packed) * weight.shape[0] // rows.shape[0], *packed.shape[1:])
        whole[at : at + len(packed)] = packed
        at += len(packed)
    return whole


def _to_pack(checkpoint: Checkpoint, rows: Weight, format: WeightFormat, target: Target) -> Any:
    if target.grouped:
        return slab.read_byte_groups(checkpoint, rows.parts, target.grouped.has_minimums)
    return slab.read_to_pack(checkpoint, rows.parts, format, target.dtype)


_LOADERS: Mapping[Pack, Callable[[Checkpoint, Weight, Target], Tensor]] = {
    "plain": _read,
    "exact": _read,
    "transposed": _transposed,
    "router": _router,
    "matrix": _panels,
    "by_head": _panels,
    "gated": _panels,
    "table": _panels,
}


def _stack(count: int, matrices: Iterable[Tensor]) -> Tensor:
    """Stack so many matrices along their first dimension. One at a time is held beside the result."""
    whole = torch.empty(0)
    for at, matrix in enumerate(matrices):
        if not at:
            whole = matrix.new_empty(count, *matrix.shape)
        whole[at] = matrix
    return whole.flatten(0, 1)
