"""grouped: which matrices of a model are stored as groups of bytes, as its checkpoint has them.

Layers of a kind share a graph, so a matrix has one format in all of them: groups, if some layer's has 5 to 8 bits.
Four-bit groups become groups of bytes, too; other matrices are quantised.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ringkv.models.weights import CheckpointTensor, Declared
from ringkv.weights.checkpoint import Checkpoint

PACKS = ("matrix", "gated")
"""Matrices of `linear`, `gated` and `experts`."""


class Grouped(NamedTuple):
    """A matrix that is stored as groups of bytes, which take 10 bits a weight with minimums and 9 without."""

    has_minimums: bool


def in_byte_groups(checkpoint: Checkpoint, layers: Iterable[tuple[str, Declared]]) -> Mapping[tuple[str, str], Grouped]:
    """Return the matrices by kind of layer and name. `layers`: the kind and the weights of each."""
    parts: dict[tuple[str, str], list[CheckpointTensor]] = {}
    for kind, weights in layers:
        for name, weight in weights.items():
            if weight.pack in PACKS:
                parts.setdefault((kind, name), []).extend(weight.parts)
    return {
        key: Grouped(_have_minimums(checkpoint, some)) for key, some in parts.items() if _are_grouped(checkpoint, some)
    }


def _are_grouped(checkpoint: Checkpoint, parts: Sequence[CheckpointTensor]) -> bool:
    return any(checkpoint.has_byte_groups(part.name) for part in parts)


def _have_minimums(checkpoint: Checkpoint, parts: Sequence[CheckpointTensor]) -> bool:
    return any(checkpoint.has_minimums(part.name) for part in parts)
