"""Job: a checkpoint's tables and layers, each rotated and rounded on its own (QuaRot, arXiv 2404.00456).

Rotation is computed in float64. With calibration, GPTQ rounds a layer for the inputs that the rounded layers before it
produce; without, values are rounded to nearest. Peak memory is both tables, or a layer twice in float64; with
calibration, a layer once in float64, once in float32, and its Hessians.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringkv.base.errors import InvalidRequest
from ringkv.base.json_file import read_object
from ringkv.engine import slab
from ringkv.models.config import ModelConfig, load_config
from ringkv.models.layer import Attention, FeedForward
from ringkv.models.online import METHOD, OnlineRotations
from ringkv.models.rotatable import refuse_unrotatable
from ringkv.models.weights import Weight
from ringkv.rotate import gptq
from ringkv.rotate.calibration import MATRICES, Calibration
from ringkv.rotate.choice import RotationChoice
from ringkv.rotate.fold import rotated_layer, without_gains
from ringkv.rotate.grid import Grid, Rounded
from ringkv.rotate.orthogonal import Orthogonal
from ringkv.rotate.tensors import quantised, stored
from ringkv.weights.checkpoint import Checkpoint

ROWS = 4096  # of a table that are rotated at a time
DTYPES = {"float32": torch.float32, "float16": torch.float16}
"""Dtypes of weights that are not quantised, by the dtype in config.json; others become bfloat16."""


@dataclass(frozen=True)
class Job:
    """config: of the source. rotated: of the result. residual: the rotation of hidden states."""

    source: Path
    checkpoint: Checkpoint
    config: ModelConfig
    rotated: ModelConfig
    residual: Orthogonal
    choice: RotationChoice
    dtype: torch.dtype

    @classmethod
    def of(cls, source: Path, choice: RotationChoice) -> "Job":
        """Raises UnsupportedModel for a model that cannot be rotated, and BadWeights."""
        config, raw = load_config(source), read_object(source / "config.json")
        if (raw.get("quantization_config") or {}).get("quant_method") == METHOD:
            raise InvalidRequest(f"{source} is rotated; give the checkpoint that it was made from")
        refuse_unrotatable(config)
        checkpoint = Checkpoint(source)
        checkpoint.check(config.tensors, config.ignored)
        rotated = replace(config, tied_embeddings=False, online=_online(config))
        dtype = DTYPES.get(str(raw.get("dtype") or raw.get("torch_dtype")), torch.bfloat16)
        residual = Orthogonal.of(config.hidden_size, choice.seed)
        return cls(source, checkpoint, config, rotated, residual, choice, dtype)

    @property
    def settings(self) -> dict[str, Any]:
        """What the result's config.json has instead of the source's.

        The model_type makes transformers refuse the checkpoint; it only warns of an unknown quant_method, and its
        logits would lack the online rotations.
        """
        online = {"down_proj": self.rotated.online.down, "o_proj": self.rotated.online.heads}
        method = {"quant_method": METHOD, "bits": self.choice.bits, "group_size": self.choice.group_size}
        return {
            "architectures": [self.config.architecture],
            "model_type": METHOD,
            "tie_word_embeddings": False,
            "quantization_config": {**method, "online": online},
        }

    @property
    def grid(self) -> Grid | None:
        """The grid that matrices are rounded to; None if they are not rounded."""
        return None if self.choice.bits == 16 else Grid(self.choice.bits, self.choice.group_size)

    def tables(self) -> dict[str, Tensor]:
        """Return the embedding, the vocabulary projection and the final norm."""
        declared, norm = self.rotated.shared_weights(), self.config.norm
        gains, unit = without_gains(self._read(declared["final_norm"]), norm.offset)
        source = self.config.shared_weights()
        head = source["embed" if self.config.tied_embeddings else "head"]
        return {
            **stored(declared["embed"], self._table(source["embed"], torch.ones_like(gains)), self.dtype),
            **stored(declared["head"], self._table(head, gains), self.dtype),
            **stored(declared["final_norm"], unit, self.dtype),
        }

    def _table(self, weight: Weight, gains: Tensor) -> Tensor:
        table = torch.empty(weight.shape, dtype=self.dtype)
        for rows, part in zip(table.split(ROWS), weight.slabs(ROWS), strict=True):
            rows.copy_(self.residual.rotated(self._read(part) * gains))
        return table

    def layer(self, index: int, calibration: Calibration | None) -> dict[str, Tensor]:
        """Return the tensors of a layer, and advance the calibration's hidden states by it."""
        kind, declared = self.rotated.kinds[index], self.rotated.layer_weights(index)
        layer = self.rotated.computed(kind)
        weights = rotated_layer(layer, {name: self._read(weight) for name, weight in declared.items()}, self.residual)
        exact = {name: value.float() for name, value in weights.items()}
        rounded = self._rounded(kind, exact, calibration)
        if calibration:
            calibration.advance(kind, exact | {name: matrix.values for name, matrix in rounded.items()})
        plain = (stored(declared[name], value, self.dtype) for name, value in weights.items() if name not in rounded)
        packed = (quantised(declared[name], matrix, self.choice.bits) for name, matrix in rounded.items())
        return {name: tensor for tensors in (*plain, *packed) for name, tensor in tensors.items()}

    def _rounded(self, kind: str, weights: Mapping[str, Tensor], calibration: Calibration | None) -> dict[str, Rounded]:
        """Return the matrices that are rounded: those whose rows are whole groups."""
        grid = self.grid
        if grid is None:
            return {}
        names = [name for name in MATRICES if grid.fits(weights[name].shape[1])]
        if calibration is None:
            return {name: grid.rounded(weights[name]) for name in names}
        hessians = calibration.hessians(kind, weights)
        return {name: gptq.rounded(weights[name], hessians[name], grid) for name in names}

    def _read(self, weight: Weight) -> Tensor:
        return slab.read(self.checkpoint, weight.parts, torch.float64)


def _online(config: ModelConfig) -> OnlineRotations:
    """Return the largest rotations that suit every layer: by powers of two that divide its sizes."""
    sizes: list[tuple[int, int]] = []
    for layer in config.layers.values():
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.feed_forward, FeedForward)
        sizes.append((layer.feed_forward.intermediate, layer.attention.heads))
    down, heads = (reduce(gcd, each) for each in zip(*sizes, strict=True))
    return OnlineRotations(down & -down, heads & -heads)
