"""Checkpoint to weights: each of our tensors is allocated once, its parts read into it, and it is packed.

Packing may quantise: the largest matrix is then there in full beside the packed ones for a moment, and no more.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.config import Weights
from ringkv.base.progress import Progress
from ringkv.kernels.formats import FORMATS
from ringkv.models.config import ModelConfig
from ringkv.models.tensors import IGNORED, Parts, layer_tensors, shared_tensors
from ringkv.weights.checkpoint import Checkpoint, open_checkpoint


class Stored(NamedTuple):
    """Formats of a layer's matrices, and of the embedding and the vocabulary projection, which bear less."""

    layers: str
    tables: str


STORED: Mapping[Weights, Stored] = {
    "bf16": Stored("bf16", "bf16"),
    "int8": Stored("int8", "int8"),
    "int4": Stored("int4", "int8"),
}
TABLES = ("embed", "head")


class ModelWeights:
    """All tensors of a model: `shared` ones by our names, and one dictionary a layer."""

    def __init__(self, shared: dict[str, Tensor], layers: list[dict[str, Tensor]]) -> None:
        self.shared, self.layers = shared, layers

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for group in (self.shared, *self.layers) for t in group.values())


def load(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    tell: Progress,
    weights: Weights = "bf16",
) -> ModelWeights:
    """Read a model directory. Raises BadWeights, naming the tensors, when the checkpoint does not match its config."""
    checkpoint = open_checkpoint(folder)
    groups = [shared_tensors(config), *(layer_tensors(config, i) for i in range(config.num_layers))]
    extra = [name for name in checkpoint.shapes() if name.endswith(IGNORED)]
    if config.tied_embeddings:
        extra.append("lm_head.weight")  # some checkpoints store the tied matrix twice
    checkpoint.check({part.name: part.shape for part in _parts(groups)}, extra)
    read = []
    for done, group in enumerate(groups):
        tell(done, len(groups), "loading weights")
        read.append(
            {name: _packed(name, _read(checkpoint, parts, dtype, device), weights) for name, parts in group.items()}
        )
    tell(len(groups), len(groups), "loading weights")
    return ModelWeights(read[0], read[1:])


def _packed(name: str, weight: Tensor, weights: Weights) -> Tensor:
    """As the operators read it fastest, where they can."""
    stored = STORED[weights]
    format = FORMATS[stored.tables if name in TABLES else stored.layers]
    pack = format.pack_gated if name == "gate_up" else format.pack
    return pack(weight) if format.fits(weight) else weight


def _parts(groups: list[Parts]) -> Iterator:  # type: ignore[type-arg]
    for group in groups:
        for parts in group.values():
            yield from parts


def _read(checkpoint: Checkpoint, parts: tuple, dtype: torch.dtype, device: torch.device) -> Tensor:  # type: ignore[type-arg]
    rows = [part.shape[0] for part in parts]
    whole = torch.empty((sum(rows), *parts[0].shape[1:]), dtype=dtype, device=device)
    for part, out in zip(parts, whole.split(rows), strict=True):
        checkpoint.read_into(part.name, out)
    return whole
