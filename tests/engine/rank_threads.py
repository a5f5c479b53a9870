"""Ranks as threads of one process; for tests."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, Thread, local
from typing import Any

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.collective import connect


class Threads(local):
    """A `Communicator` of the threads of a process, each of which is a rank with an index of its own."""

    index = 0

    def __init__(self, barrier: Barrier, given: list[Tensor]) -> None:
        """given: what each thread has given to the others."""
        self.barrier, self._given = barrier, given

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack([one.float() for one in self._exchanged(x)]).sum(0)

    def all_max(self, x: Tensor) -> Tensor:
        return torch.stack([one.float() for one in self._exchanged(x)]).amax(0)

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        parts = self._exchanged(x)
        assert [part.shape[1] for part in parts] == list(widths)
        return torch.cat(parts, 1)

    def columns_to_rows(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        parts = self._exchanged(x)
        assert [part.shape[1] for part in parts] == list(widths)
        return torch.cat(parts, 1)[self.index :: len(parts)].float()

    def rows_to_columns(self, x: Tensor, widths: Sequence[int], own: int) -> Tensor:
        rows = torch.stack(self._exchanged(x), 1).flatten(0, 1)
        return rows.split(list(widths), 1)[self.index].float()

    def _exchanged(self, x: Tensor) -> list[Tensor]:
        self._given[self.index] = x
        self.barrier.wait(60)
        given = list(self._given)
        self.barrier.wait(60)
        return given


def on_ranks(config: EngineConfig, count: int, work: Callable[[LocalEngine], Any]) -> list[Any]:
    """Build an engine for each rank, and return what `work` returns on each."""

    def run(index: int) -> Any:
        return work(build(replace(config, rank=replace(config.rank, index=index, count=count), exchange="network")))

    return in_threads(count, run)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what `work` returns for the index of each rank."""
    threads, found, errors = Threads(Barrier(count), [torch.empty(0)] * count), [None] * count, []
    connect(threads)

    def run(index: int) -> None:
        threads.index = index
        try:
            found[index] = work(index)
        except BaseException as error:
            errors.append(error)
            threads.barrier.abort()

    ranks = [Thread(target=run, args=(index,)) for index in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    for error in sorted(errors, key=lambda one: isinstance(one, BrokenBarrierError)):
        raise error
    return found
