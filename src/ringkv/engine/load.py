"""Checkpoint to weights: rows are read, packed and put in their place, a slab at a time.

Peak memory is the weights plus one slab, and one packed matrix of a stack of experts.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.config import Activations, Weights
from ringkv.base.progress import Progress
from ringkv.base.ranks import ONE_RANK, Rank
from ringkv.base.shown import shown_names
from ringkv.engine import slab
from ringkv.kernels.formats import FORMATS, WeightFormat, format_of
from ringkv.kernels.packing import PANEL_N
from ringkv.models.base import ModelConfig
from ringkv.models.weights import Declared, Pack, Weight
from ringkv.weights.checkpoint import Checkpoint

log = logging.getLogger(__name__)
PERMUTED = (
    "the groups of %d matrices are permuted (GPTQ's desc_act, or actorder): int4 quantises them again, int8 and bf16 "
    "are closer to the checkpoint: %s"
)
SLAB = 1024  # rows; whole panels, and whole blocks of an fp8 checkpoint


class Formats(NamedTuple):
    """Formats of a layer's matrices, and of its tables: embedding and vocabulary projection, which need more bits.

    heads: of the matrices of single heads, whose operators have bfloat16 rows. Tables have them, too: prefill projects
    one row of a prompt, so int8 rows would lose accuracy and save little. groups: of a layer's matrices that the
    checkpoint has in 5 to 8 bits; None: these are quantised like others.
    """

    layers: str
    tables: str
    heads: str
    groups: str | None = None


STORED: Mapping[tuple[Weights, Activations], Formats] = {
    ("bf16", "16-bit"): Formats("bf16", "bf16", "bf16"),
    ("int8", "16-bit"): Formats("int8", "int8", "int8", "int8-groups"),
    ("int4", "16-bit"): Formats("int4", "int8", "int4"),
    ("int8", "int8"): Formats("w8a8", "int8", "int8", "int8-groups-a8"),
    ("int4", "int8"): Formats("w4a8", "int8", "int4"),
    ("int4", "int4"): Formats("w4a4", "int8", "int4"),
}


class ModelWeights(NamedTuple):
    """All tensors of a model: `shared` ones by name, and one dictionary per layer."""

    shared: dict[str, Tensor]
    layers: list[dict[str, Tensor]]

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
    checkpoint = Checkpoint(folder)
    groups = [config.shared_weights(), *(config.layer_weights(i) for i in range(config.num_layers))]
    checkpoint.check(config.tensors, config.ignored)
    if weights == "int4" and (names := checkpoint.permuted):
        log.warning(PERMUTED, len(names), shown_names(names))
    kinds = ("", *config.kinds)  # "": the shared weights
    each = list(zip(kinds, groups, strict=True))
    loader, loaded = Loader(checkpoint, dtype, device, STORED[weights, activations]), []
    minimums = _in_byte_groups(checkpoint, each) if loader.formats.groups else {}
    for done, (kind, group) in enumerate(each):
        tell(done, len(groups), "loading weights")
        loaders = {name: loader._replace(has_minimums=minimums.get((kind, name))) for name in group}
        loaded.append({name: loaders[name].load(weight.of_rank(rank)) for name, weight in group.items()})
    tell(len(groups), len(groups), "loading weights")
    return ModelWeights(loaded[0], loaded[1:])


def _in_byte_groups(checkpoint: Checkpoint, layers: Iterable[tuple[str, Declared]]) -> Mapping[tuple[str, str], bool]:
    """Return whether matrices that are stored as groups of bytes have minimums, by kind of layer and name.

    Layers of a kind share a graph, so a matrix has one format in all of them: groups, if some layer's has 5 to 8 bits
    in the checkpoint. Four-bit groups become groups of bytes, too; other matrices are quantised. They take 10 bits a
    weight with minimums and 9 without. layers: the kind and the weights of each.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for kind, weights in layers:
        for name, weight in weights.items():
            if weight.pack in ("matrix", "gated"):  # matrices of `linear`, `gated` and `experts`
                names.setdefault((kind, name), []).extend(part.name for part in weight.parts)
    return {
        key: any(map(checkpoint.has_minimums, parts))
        for key, parts in names.items()
        if any(map(checkpoint.has_byte_groups, parts))
    }


class Loader(NamedTuple):
    """Reads weights and stores them in their formats.

    has_minimums: of a matrix in groups of bytes, whether these have minimums; None: it has another format.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    formats: Formats
    has_minimums: bool | None = None

    def load(self, weight: Weight) -> Tensor:
        """Read a weight's parts, and pack it for the operators if its shape allows."""
        if weight.is_zero:
            return torch.zeros(weight.shape, dtype=self._dtype(weight), device=self.device)
        if weight.matrices > 1:
            return _stack(weight.matrices, map(self.load, weight.each))
        format = self._format(weight.pack)
        # By slabs only if the matrix is packed.
        row = torch.empty(1, *weight.shape[1:], dtype=self._dtype(weight), device=self.device)
        if weight.pack in ("matrix", "by_head", "gated", "table") and format.fits(row.expand(weight.shape)):
            return self._panels(weight, format)
        tensor = slab.read(self.checkpoint, weight.parts, self._dtype(weight), self.device)
        if weight.pack == "transposed":
            tensor = tensor.T.contiguous()
        elif weight.pack == "router":  # a matrix [E, hidden] or its bias [E], with rows of zeros up to whole panels
            rows = -len(tensor) % (2 * PANEL_N)
            tensor = torch.nn.functional.pad(tensor, (*[0, 0] * (tensor.dim() - 1), 0, rows))
        else:
            return tensor
        return format.pack(tensor) if format.fits(tensor) else tensor

    def _dtype(self, weight: Weight) -> torch.dtype:
        """Return the dtype of a weight before it is packed."""
        return torch.float32 if weight.pack == "exact" else self.dtype

    def _format(self, pack: Pack) -> WeightFormat:
        """Return the format in which a weight is packed if its shape allows."""
        if self.has_minimums is not None and self.formats.groups:
            return FORMATS[self.formats.groups]
        heads = self.formats.heads
        other = {"table": self.formats.tables, "router": "bf16", "by_head": heads, "transposed": heads}
        return FORMATS[other.get(pack, self.formats.layers)]

    def _panels(self, weight: Weight, format: WeightFormat) -> Tensor:
        """Read and pack a matrix by slabs of its rows."""
        pack = format.pack_gated if weight.pack == "gated" else format.pack
        panels, first = torch.empty(0), 0
        for rows in weight.slabs(SLAB):
            if self.has_minimums is not None:
                packed = pack(slab.read_byte_groups(self.checkpoint, rows.parts, self.has_minimums))
            else:
                packed = pack(slab.read_to_pack(self.checkpoint, rows.parts, format, self.dtype))
            if not first:
                panels = packed.new_empty(len(packed) * weight.shape[0] // rows.shape[0], *packed.shape[1:])
            panels[first : first + len(packed)] = packed
            first += len(packed)
        return panels


def _stack(count: int, matrices: Iterable[Tensor]) -> Tensor:
    """Stack so many matrices along their first dimension. One at a time is held beside the result."""
    stacked = torch.empty(0)
    for index, matrix in enumerate(matrices):
        if not index:
            stacked = matrix.new_empty(count, *matrix.shape)
        stacked[index] = matrix
    return stacked.flatten(0, 1)
