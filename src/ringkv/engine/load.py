"""Checkpoint to weights: each tensor is allocated once, its parts are read into it, and it is packed.

Peak memory while quantizing is the packed weights plus one unpacked matrix.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.config import Weights
from ringkv.base.progress import Progress
from ringkv.kernels.formats import FORMATS
from ringkv.kernels.quantize import Int4Groups, stacked
from ringkv.models.base import ModelConfig
from ringkv.models.weights import CheckpointTensor, Weight
from ringkv.weights.checkpoint import Checkpoint, open_checkpoint


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
) -> ModelWeights:
    """Read a model directory. Raises BadWeights, naming the tensors, if the checkpoint does not match its config."""
    checkpoint = open_checkpoint(folder)
    groups = [config.shared_weights(), *(config.layer_weights(i) for i in range(config.num_layers))]
    checkpoint.check(config.tensors, config.ignored)
    read = []
    for done, group in enumerate(groups):
        tell(done, len(groups), "loading weights")
        each = ((name, weight, torch.empty(weight.shape, dtype=dtype, device=device)) for name, weight in group.items())
        read.append({name: _load(checkpoint, weight, whole, STORED[weights]) for name, weight, whole in each})
    tell(len(groups), len(groups), "loading weights")
    return ModelWeights(read[0], read[1:])


def _load(checkpoint: Checkpoint, weight: Weight, whole: Tensor, stored: Stored) -> Tensor:
    """Fill `whole` with its parts, and pack it for the operators if its shape allows."""
    format = FORMATS[stored.tables if weight.pack == "table" else stored.layers]
    if weight.pack == "plain" or not format.fits(whole):
        return _read(checkpoint, weight, whole)
    pack = format.pack_gated if weight.pack == "gated" else format.pack
    if format.group is None:
        return pack(_read(checkpoint, weight, whole))
    return pack(stacked([_groups(checkpoint, part, rows, format.group) for part, rows in _rows(weight, whole)]))


def _read(checkpoint: Checkpoint, weight: Weight, whole: Tensor) -> Tensor:
    for part, rows in _rows(weight, whole):
        checkpoint.read_into(part.name, rows)
    return whole


def _rows(weight: Weight, whole: Tensor) -> Iterator[tuple[CheckpointTensor, Tensor]]:
    """Return each part with its rows of `whole`."""
    return zip(weight.parts, whole.split([part.shape[0] for part in weight.parts]), strict=True)


def _groups(
    checkpoint: Checkpoint, part: CheckpointTensor, rows: Tensor, group: Callable[[Tensor], Int4Groups]
) -> Int4Groups:
    """Return quantization groups from the checkpoint if it has them, else computed from its elements in `rows`."""
    if known := checkpoint.groups(part.name):
        return Int4Groups(*known)
    checkpoint.read_into(part.name, rows)
    return group(rows)
