"""Ranks as threads of one process; for tests."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.collective import connect_thread


class Shared:
    """What the threads exchange."""

    def __init__(self, count: int) -> None:
        self.barrier, self.given = Barrier(count), [torch.empty(0)] * count


class Threads:
    """A `Communicator` of one thread."""

    def __init__(self, shared: Shared, index: int) -> None:
        self._shared, self._index = shared, index

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
        return torch.cat(parts, 1)[self._index :: len(parts)].float()

    def rows_to_columns(self, x: Tensor, widths: Sequence[int], own: int) -> Tensor:
        rows = torch.stack(self._exchanged(x), 1).flatten(0, 1)
        return rows.split(list(widths), 1)[self._index].float()

    def _exchanged(self, x: Tensor) -> list[Tensor]:
        self._shared.given[self._index] = x
        self._shared.barrier.wait(60)
        given = list(self._shared.given)
        self._shared.barrier.wait(60)
        return given


def on_ranks(config: EngineConfig, count: int, work: Callable[[LocalEngine], Any]) -> list[Any]:
    """Build an engine for each rank, and return what `work` returns on each."""

    def run(index: int) -> Any:
        return work(build(replace(config, rank=replace(config.rank, index=index, count=count), exchange="network")))

    return in_threads(count, run)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what `work` returns for the index of each rank."""
    shared, found, errors = Shared(count), [None] * count, []

    def run(index: int) -> None:
        connect_thread(Threads(shared, index))
        try:
            found[index] = work(index)
        except BaseException as error:
            errors.append(error)
            shared.barrier.abort()

    threads = [Thread(target=run, args=(index,)) for index in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for error in sorted(errors, key=lambda one: isinstance(one, BrokenBarrierError)):
        raise error
    return found
