"""Architecture: how one architecture of GGUF files is written in Hugging Face layout."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringkv.weights import gguf_parts as parts
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_fields import one_size
from ringkv.weights.gguf_heads import grouped
from ringkv.weights.gguf_parts import Modules
from ringkv.weights.gguf_rope import rope_scaling
from ringkv.weights.gguf_routers import RouterSettings, softmax
from ringkv.weights.gguf_source import Source
from ringkv.weights.gguf_windows import Windows

Settings = Callable[[GGUF, str], dict[str, Any]]
"""Returns settings of config.json from a file and its keys' prefix. Raises UnsupportedModel or BadWeights."""

RopeScaling = Callable[[GGUF, str, int], dict[str, Any] | None]
"""Returns rope_scaling of heads that rotate so many elements."""

Merged = Callable[[GGUF, str], Iterator[tuple[str, Source]]]
"""Gives the tensors of a layer, such as "blk.3.", by their names in the layer in Hugging Face layout."""

NORMALISED = softmax()
UNNAMED = Windows()


def unmerged(gguf: GGUF, layer: str) -> Iterator[tuple[str, Source]]:
    """Yield nothing: no tensor is merged from several."""
    return iter(())


def nothing(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return no settings."""
    return {}


@dataclass(frozen=True)
class Architecture:
    """One architecture in both layouts.

    modules, shared: of a layer and outside of layers, by their names in a GGUF. numbers, factors: metadata keys of
    whole numbers and of decimals, by their names in config.json. fixed: settings that no key has. heads, feed_forward,
    scaling, router, own: compute settings. windows: what a sliding window means. paired: rows of query and key heads
    are in the order of rotary pairs. norm_shift: norm weights in the GGUF minus those in Hugging Face layout. merged:
    gives the tensors that are several tensors in the GGUF.
    """

    name: str
    model_type: str
    modules: Modules = field(default_factory=lambda: parts.DENSE)
    shared: Modules = field(default_factory=lambda: parts.SHARED)
    numbers: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    heads: Settings = grouped
    feed_forward: Settings = one_size
    scaling: RopeScaling = rope_scaling
    router: RouterSettings = NORMALISED
    own: Settings = nothing
    windows: Windows = UNNAMED
    paired: bool = False
    norm_shift: float = 0.0
    merged: Merged = unmerged
