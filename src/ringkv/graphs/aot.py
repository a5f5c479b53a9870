"""Ahead-of-time compiled graphs on the CPU: torch.export, AOTInductor, one shared library a graph, kept on disk.

    graphs/<name>-<key>/  graph.so, and graph.json where it calls operators of ours

A warm start loads a library in a millisecond and traces nothing. The key holds all that a graph depends on: our
source, our operators that have a kernel, the argument shapes and strides, torch, the compiler, the processor and
the thread count. A cache's length is no part of it: one graph serves every budget.
"""

import contextlib
import hashlib
import logging
import os
import subprocess
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from ringkv.graphs.graph import Graph, StaticFunction, TensorFunction
from ringkv.kernels.library import natives
from ringkv.machine.processor import identity


class AheadOfTime:
    """Builds what is not yet in `folder`; `on_build(name)` is told before each compilation.

    source: a digest of all source that a function's meaning depends on.
    """

    def __init__(self, folder: Path, compiler: str, source: str, on_build: Callable[[str], None]) -> None:
        self.folder, self.compiler, self.source, self.on_build = folder, compiler, source, on_build
        self.builds = 0

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        # torch.export takes two arguments that are one tensor for one input, and would swap them unseen.
        assert len({id(tensor) for tensor in example}) == len(example), f"{name}: two example arguments are one tensor"
        kept = self.folder / f"{name}-{_digest(self.compiler, self.source, function, example)}"
        if not kept.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f"{kept.name}.lock"):
                if not kept.is_dir():  # another process may have built it while we waited
                    self._build(name, function, example, kept)
        return _load(kept)

    def _build(self, name: str, function: StaticFunction, example: Sequence[Tensor], kept: Path) -> None:
        self.on_build(name)
        self.builds += 1
        with tempfile.TemporaryDirectory(dir=self.folder) as work, _quiet(), _environment(**self._places(work)):
            free = [dict.fromkeys(dimensions, torch.export.Dim.DYNAMIC) for dimensions in _free(function, example)]
            shapes = {"arguments": tuple(free)}
            exported = torch.export.export(_Call(function.body), tuple(example), strict=False, dynamic_shapes=shapes)
            package = torch._inductor.aoti_compile_and_package(exported, package_path=f"{work}/{name}.pt2")
            _unpack(Path(package), Path(work) / "made")
            os.rename(Path(work) / "made", kept)

    def _places(self, work: str) -> dict[str, str]:
        """Where the compiler is and what it writes goes: to `work`, and Inductor's own cache beside our folder."""
        tempfile.gettempdir()  # Python looks for its own once, and must not find `work`
        kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(self.folder.parent / "inductor"))
        return {"CXX": self.compiler, "TMPDIR": work, "TORCHINDUCTOR_CACHE_DIR": kept}


class _Call(torch.nn.Module):
    """torch.export takes modules only."""

    def __init__(self, body: TensorFunction) -> None:
        super().__init__()
        self.body = body

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return self.body(*arguments)


def _unpack(package: Path, into: Path) -> None:
    """Write what running needs of a package; the rest is its source code."""
    into.mkdir()
    with zipfile.ZipFile(package) as members:
        for name in members.namelist():
            if name.endswith((".wrapper.so", ".wrapper.json")):
                (into / f"graph{Path(name).suffix}").write_bytes(members.read(name))


def _load(kept: Path) -> Graph:
    """Not by `torch._inductor.aoti_load_package`: it imports the whole compiler, which takes longer than all else that
    starts, and unpacks into the temporary folder, where a process that is killed leaves it."""
    run: Graph = torch._C._aoti.AOTIModelContainerRunnerCpu(str(kept / "graph.so"), 1).run
    return run


def _free(function: StaticFunction, example: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """The dimensions of each argument that may have another length at each start.

    torch makes a constant of a length of 1.
    """
    free = zip(function.dynamic_dimensions(example), example, strict=True)
    return [tuple(dim for dim in dimensions if tensor.shape[dim] > 1) for dimensions, tensor in free]


def _form(tensor: Tensor, free: Collection[int]) -> str:
    """Shape, strides and type; free lengths left out, which a contiguous tensor's strides follow."""
    assert tensor.is_contiguous() or not free, "a tensor of a free length must be contiguous"
    shape = [None if dim in free else length for dim, length in enumerate(tensor.shape)]
    return f"{shape}{None if free else tensor.stride()}{tensor.dtype}{tensor.device}"


def _digest(compiler: str, source: str, function: StaticFunction, example: Sequence[Tensor]) -> str:
    shapes = [_form(tensor, free) for tensor, free in zip(example, _free(function, example), strict=True)]
    about = [
        source,
        *natives(),
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        identity(),
        str(torch.get_num_threads()),
        _version(compiler),
        function.key,
        *shapes,
    ]
    return hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's own warnings about its export and package formats are not for our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.getLogger("torch").level
        logging.getLogger("torch").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch").setLevel(level)
