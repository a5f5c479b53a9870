"""Inductor: on a GPU, each static function compiled by torch.compile, which fuses what lies between matrix products.

CUDA graphs are ours (`capture`), so Inductor makes none. What it compiles is kept in torch's own cache on disk.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ringkv.graphs.graph import Graph, StaticFunction

_LIMITS = {"recompile_limit": 1024, "accumulated_recompile_limit": 4096}
"""Every graph of a kind comes from one code object, which torch takes for recompilations of one function."""


class Inductor:
    """Compiles at once, by running each function on its example: a free slot, an empty prompt, neutral parameters."""

    def __init__(self, folder: Path, on_build: Callable[[str], None]) -> None:
        self.on_build = on_build
        self.builds = 0
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        # Arguments that are written must not share memory with others: torch would then work on a copy of the cache.
        assert len({t.untyped_storage().data_ptr() for t in example}) == len(example), f"{name}: arguments overlap"
        self.on_build(name)
        self.builds += 1
        compiled = torch.compile(function.body, fullgraph=True, dynamic=False, options={"triton.cudagraphs": False})
        with torch._dynamo.config.patch(_LIMITS):
            compiled(*example)
        return lambda arguments: compiled(*arguments)
