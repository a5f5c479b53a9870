"""aot: graphs for the CPU, compiled ahead of time by torch.export and AOTInductor. Each is a shared library on disk.

    graphs/<name>-<key>/  graph.so, seal.json, and graph.json if it calls our operators

A warm start loads a library in a millisecond and traces nothing. The key covers all that a graph depends on: our
source, our operators that have a kernel, the argument shapes and strides, torch, the compiler, the processor and
the thread count. Dynamic lengths are not part of it: one graph serves every number of rows, slots and entries.
"""

import contextlib
import hashlib
import logging
import os
import subprocess
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringkv.base.errors import BadCache
from ringkv.base.failure import in_short
from ringkv.graphs.graph import Graph, StaticFunction, TensorFunction
from ringkv.kernels.built import built, is_whole
from ringkv.kernels.library import native_operators
from ringkv.machine.folders import make_private
from ringkv.machine.processor import identity
from ringkv.machine.tethered import script


def _ignore(name: str) -> None:
    """Report nothing."""


@dataclass(eq=False)
class AheadOfTime:
    """Builds graphs that are not in `folder` yet; calls `on_build(name)` before each compilation.

    source: a digest of all source code that a function depends on. on_wait(name): called if another process is
    compiling the graph, which is then awaited.
    """

    folder: Path
    compiler: str
    source: str
    on_build: Callable[[str], None]
    on_wait: Callable[[str], None] = _ignore
    builds: int = 0

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        # torch.export merges two arguments that are one tensor, and would mix them up without an error.
        assert len({id(tensor) for tensor in example}) == len(example), f"{name}: two example arguments are one tensor"
        path = self._path(name, function, example)
        built(path, partial(self._build, name, function, example), partial(self.on_wait, name))
        return _load(path)

    def has(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> bool:
        """Whether the graph is in the folder, whole."""
        return is_whole(self._path(name, function, example))

    def discard_headers(self) -> None:
        """Delete precompiled headers, hundreds of megabytes, when all graphs are made.

        Another process that is compiling then reads the headers' text, which stays.
        """
        for path in self._headers.glob("*.gch"):
            with suppress(OSError):
                path.unlink()

    @property
    def _headers(self) -> Path:
        return self.folder.parent / "inductor" / "precompiled_headers"

    def silent(self) -> "AheadOfTime":
        """Return the same without callbacks, for another process."""
        return AheadOfTime(self.folder, self.compiler, self.source, _ignore)

    def _path(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Path:
        return self.folder / f"{name}-{_digest(self.compiler, self.source, function, example)}"

    def _build(self, name: str, function: StaticFunction, example: Sequence[Tensor], into: Path) -> None:
        self.on_build(name)
        self.builds += 1
        scratch, dynamic = str(into.parent), function.dynamic_dimensions(example)
        with _quiet(), _replaced(os.environ, **self._variables(scratch)):
            from torch._inductor import codecache  # reads the environment

            # Its own choice for precompiled headers is a folder in /tmp, where somebody else's could be already.
            with _replaced(vars(codecache), _HEADER_DIR=str(self._headers)):
                example = [_several(tensor, dimensions) for tensor, dimensions in zip(example, dynamic, strict=True)]
                shapes = {"arguments": tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) for each in dynamic)}
                exported = torch.export.export(
                    _Call(function.body), tuple(example), strict=False, dynamic_shapes=shapes
                )
                package = torch._inductor.aoti_compile_and_package(exported, package_path=f"{scratch}/{name}.pt2")
                _unpack(Path(package), into)

    def _variables(self, work: str) -> dict[str, str]:
        """Return the compiler and the folders that it writes to: `work`, and Inductor's own cache beside our folder."""
        for name in ("inductor", "compilers"):
            if fault := make_private(self.folder.parent / name):
                raise BadCache(fault)
        tempfile.gettempdir()  # Python caches its own at the first call; it must not be `work`
        inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(self.folder.parent / "inductor"))
        compiler = script(self.compiler, self.folder.parent / "compilers")  # torch reads $CXX once, so it must last
        return {"CXX": str(compiler), "TMPDIR": work, "TORCHINDUCTOR_CACHE_DIR": inductor}


class _Call(torch.nn.Module):
    """Wraps a function, because torch.export accepts modules only."""

    def __init__(self, body: TensorFunction) -> None:
        super().__init__()
        self.body = body

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return self.body(*arguments)


def _unpack(package: Path, into: Path) -> None:
    """Extract the files of a package that are needed to run it; the others are source code."""
    with zipfile.ZipFile(package) as members:
        for name in members.namelist():
            if name.endswith((".wrapper.so", ".wrapper.json")):
                (into / f"graph{Path(name).suffix}").write_bytes(members.read(name))


def _load(path: Path) -> Graph:
    """Load a graph without `torch._inductor.aoti_load_package`.

    That function imports the whole compiler, which takes longer than the rest of a start, and unpacks into the
    temporary folder, where a killed process leaves the files.
    """
    library = path / "graph.so"
    try:
        run: Graph = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1).run
    except RuntimeError as error:
        raise BadCache(f"{library} cannot be loaded ({in_short(error)}); delete {path}, or use --graphs off") from None
    return run


def _several(tensor: Tensor, dimensions: Collection[int]) -> Tensor:
    """Return a tensor to trace with, whose dynamic lengths are at least 2: torch takes a length of 1 as a constant.

    The graph works for a length of 1 too. Only the tensor's shape is used.
    """
    if all(tensor.shape[dim] > 1 for dim in dimensions):
        return tensor
    return tensor.new_empty([max(2, n) if dim in dimensions else n for dim, n in enumerate(tensor.shape)])


def _signature(tensor: Tensor, dynamic: Collection[int]) -> str:
    """Return shape, strides, dtype and device, without dynamic lengths and the strides that depend on them."""
    assert tensor.is_contiguous() or not dynamic, "a tensor with a dynamic length must be contiguous"
    shape = [None if dim in dynamic else length for dim, length in enumerate(tensor.shape)]
    return f"{shape}{None if dynamic else tensor.stride()}{tensor.dtype}{tensor.device}"


def _digest(compiler: str, source: str, function: StaticFunction, example: Sequence[Tensor]) -> str:
    dynamic = function.dynamic_dimensions(example)
    signatures = [_signature(tensor, dims) for tensor, dims in zip(example, dynamic, strict=True)]
    parts = [
        source,
        *native_operators(),
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        identity(),
        str(torch.get_num_threads()),
        _version(compiler),
        function.key,
        *signatures,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def _replaced(values: MutableMapping[str, Any], **others: Any) -> Iterator[None]:
    """Replace some values of a mapping, and put them back at the end."""
    before = {name: values[name] for name in others if name in values}
    values.update(others)
    try:
        yield
    finally:
        for name in others:
            del values[name]
        values.update(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about its export and package formats, which are not for our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.getLogger("torch").level
        logging.getLogger("torch").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch").setLevel(level)
