"""background: graphs that another process compiles while their functions serve, uncompiled.

    backend = Background(AheadOfTime(...), load_operators)
    graph = backend.make(name, function, example)   # returns at once
    backend.start()                                 # when all graphs are made

The process has a low priority and compiles one graph after the other, for arguments of the same shapes: it holds no
weights. Each compiled graph takes the place of its function between two calls, with the same results: our operators
give the same bits in both.
"""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.util import is_exiting
from threading import RLock, Thread
from time import monotonic

import torch
from torch import Tensor

from ringkv.base.failure import in_short
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.graph import Graph, StaticFunction
from ringkv.machine.parent import exit_with_parent

NICE = 10  # about a tenth of a core that is busy, all of one that is idle
USUAL_SECONDS = 12  # to compile a graph on an idle core

log = logging.getLogger(__name__)


class Background:
    """A backend whose missing graphs run uncompiled until they are compiled. The others are loaded.

    prepare: makes the operators known in the compiling process; a function of a module, with arguments bound.
    """

    def __init__(self, ahead: AheadOfTime, prepare: Callable[[], object]) -> None:
        self._ahead, self._prepare = ahead, prepare
        self._missing: list[_Swapped] = []
        self._thread = Thread(target=self._compile, name="background-graphs", daemon=True)
        self.builds = 0

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        if self._ahead.has(name, function, example):
            return self._ahead.make(name, function, example)
        self._missing.append(_Swapped(name, function, example))
        return self._missing[-1]

    def start(self) -> None:
        """Begin to compile what is missing."""
        if self._missing:
            seconds = USUAL_SECONDS * len(self._missing)
            log.warning(
                "compiling %d graphs in the background, about %d s on idle cores; until then steps are slower",
                len(self._missing),
                seconds,
            )
            self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        """Wait until all are compiled, or none can be."""
        self._thread.join(seconds)

    def _compile(self) -> None:
        began, count = monotonic(), len(self._missing)
        try:
            with _Compiler(self._ahead, self._prepare) as compiler:
                while self._missing:
                    graph = self._missing[0]
                    compiler.compile(graph)
                    graph.swap(self._ahead)
                    self._missing.pop(0)
                    self.builds += 1
        except Exception as error:
            if not is_exiting():  # the end of this process ends the other
                log.warning("graphs run uncompiled, slower: %s", in_short(error))
        else:
            self._ahead.discard_headers()
            log.warning("%d graphs are compiled, after %.0f s, and kept on disk", count, monotonic() - began)


class _Swapped:
    """A graph that runs its function until it is compiled."""

    def __init__(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> None:
        self.name, self.function, self._example = name, function, example
        self._graph: Graph = lambda arguments: function.body(*arguments)

    def __call__(self, arguments: list[Tensor]) -> Sequence[Tensor]:
        return self._graph(arguments)

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """All that a graph depends on of each argument: size, strides and dtype."""
        return [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in self._example]

    def swap(self, ahead: AheadOfTime) -> None:
        """Load the compiled graph, and let go of the example."""
        self._graph = ahead.make(self.name, self.function, self._example)
        self._example = ()


class _Compiler:
    """The compiling process. It ends with this one."""

    def __init__(self, ahead: AheadOfTime, prepare: Callable[[], object]) -> None:
        self._connection, theirs = get_context("spawn").Pipe()
        shared = ahead.silent(), prepare, torch.get_num_threads()  # so that both find a graph under the same key
        self._process = get_context("spawn").Process(target=_serve, args=(theirs, *shared), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> "_Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def compile(self, graph: _Swapped) -> None:
        """Raises RuntimeError if the graph cannot be compiled, or the process has ended."""
        try:
            self._connection.send((graph.name, graph.function, graph.shapes))
            fault = self._connection.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError("the compiling process has ended") from error
        if fault:
            raise RuntimeError(f"{graph.name} could not be compiled: {fault}")


def _serve(connection: Connection, ahead: AheadOfTime, prepare: Callable[[], object], threads: int) -> None:
    """Compile graphs until this process is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the engine, which ignores it, sends it to its children at its end
    exit_with_parent()
    _lock_in_process()
    os.nice(NICE)
    torch.set_num_threads(threads)
    prepare()
    with torch.inference_mode(), suppress(EOFError, OSError):  # the engine has ended
        while True:
            (name, function, shapes), fault = connection.recv(), None
            try:  # with tensors whose memory is never touched, so that they take none
                ahead.make(name, function, [torch.empty_strided(*shape, dtype=dtype) for *shape, dtype in shapes])
            except Exception as error:
                fault = in_short(error)
            connection.send(fault)


def _lock_in_process() -> None:
    """Give tqdm, with which torch shows progress, a lock that does not outlive a process that is killed."""
    with suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]

        tqdm.set_lock(RLock())
