"""query_statistics: sums over a model's queries on a text, in a file that `ringkv calibrate` makes.

H key-value heads, G query heads each, D elements, F pairs of elements that rotate together.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ringkv.base.errors import BadCache
from ringkv.machine.folders import make
from ringkv.weights.files import stamps

FORMAT = 1  # raise it if the sums are computed otherwise, so that old files are not used
QUERIES, LENGTHS, TOKENS, SOURCE = "queries", "lengths", "tokens", "source"


class LayerSums(NamedTuple):
    """float64 sums over tokens: of queries before rotation [H, G, D], and of the lengths of their pairs [H, G, F]."""

    queries: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class QueryStatistics:
    """layers: the sums by number of the layer. tokens: how many were added. source: what they are from, as a key."""

    source: str
    tokens: int = 0
    layers: Mapping[int, LayerSums] = field(default_factory=dict)

    def plus(self, tokens: int, layers: Mapping[int, LayerSums]) -> "QueryStatistics":
        """Return the sums with those over more tokens added."""
        added = {layer: _added(self.layers.get(layer), one) for layer, one in layers.items()}
        return replace(self, tokens=self.tokens + tokens, layers=added)

    def means(self, layer: int) -> LayerSums:
        """Return the means over tokens, float32."""
        return LayerSums(*((one / self.tokens).float() for one in self.layers[layer]))


def _added(before: LayerSums | None, more: LayerSums) -> LayerSums:
    return more if before is None else LayerSums(before.queries + more.queries, before.lengths + more.lengths)


def path_of(model_dir: Path, cache_dir: Path) -> Path:
    """Return the file of a model's statistics. Its name has a key of the model's files: names, sizes and times."""
    key = hashlib.sha256(repr((FORMAT, stamps(model_dir))).encode()).hexdigest()[:12]
    return cache_dir / "calibrated" / f"{model_dir.name}-{key}.safetensors"


def partial_path(path: Path) -> Path:
    """Return the file that has the statistics of a calibration that is not complete."""
    return path.with_suffix(".partial")


def read(path: Path) -> QueryStatistics | None:
    """Return the statistics in a file; None if there is none. Raises BadCache if it cannot be read."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            names = list(file.keys())
            layers = sorted(int(name.partition(".")[0]) for name in names if name.endswith(QUERIES))
            found = {
                one: LayerSums(*(file.get_tensor(f"{one}.{what}") for what in (QUERIES, LENGTHS))) for one in layers
            }
        return QueryStatistics(about[SOURCE], int(about[TOKENS]), found)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise BadCache(f"{path} cannot be read ({error}); delete it, and run `ringkv calibrate` again") from error


def write(path: Path, statistics: QueryStatistics) -> None:
    """Write a file, which replaces an earlier one when it is complete."""
    make(path.parent)
    tensors = {f"{layer}.{QUERIES}": one.queries for layer, one in statistics.layers.items()}
    tensors |= {f"{layer}.{LENGTHS}": one.lengths for layer, one in statistics.layers.items()}
    new = path.with_name(f"{path.name}.new")
    save_file(tensors, new, {TOKENS: str(statistics.tokens), SOURCE: statistics.source})
    os.replace(new, path)
