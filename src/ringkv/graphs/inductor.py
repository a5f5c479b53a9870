"""Inductor: compiles static functions for a GPU with torch.compile, which fuses operators between matrix products.

CUDA graphs are made by `capture`, so Inductor makes none. Compiled code is kept in torch's own cache on disk.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ringkv.base.errors import BadCache
from ringkv.graphs.graph import Graph, StaticFunction
from ringkv.machine.folders import make_private, unwritable

OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "triton.cudagraphs": False,
    "shape_padding": False,  # torch would time padded matrices, and rounding would depend on the timing
}
_LIMITS = {"recompile_limit": 1024, "accumulated_recompile_limit": 4096}
"""All graphs of a kind come from one code object, so torch counts them as recompilations of one function."""


class Inductor:
    """Compiles at once, by running each function on its example: a free slot, an empty prompt, neutral parameters."""

    def __init__(self, folder: Path, on_build: Callable[[str], None]) -> None:
        self.on_build = on_build
        self.builds = 0
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            if fault := make_private(folder):
                raise BadCache(fault)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        # Arguments that are written must not share memory with others: torch would work on a copy of the cache.
        assert len({t.untyped_storage().data_ptr() for t in example}) == len(example), f"{name}: arguments overlap"
        self.on_build(name)
        self.builds += 1
        compiled = torch.compile(function.body, fullgraph=True, dynamic=False, options=OPTIONS)
        with torch._dynamo.config.patch(_LIMITS), _full_disks_named():
            compiled(*example)
        return lambda arguments: compiled(*arguments)


@contextmanager
def _full_disks_named() -> Iterator[None]:
    """Raise BadCache for an error of a compilation if Inductor's folder cannot be written."""
    try:
        yield
    except Exception as error:
        if fault := unwritable(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])):
            raise BadCache(fault) from error
        raise
