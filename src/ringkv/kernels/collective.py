"""collective: collective operations of ranks, as operators that a static graph can contain.

Every rank calls the same operators in the same order. All ranks get the same bits.

N rows. `columns_to_rows` and its reverse are all-to-all: a rank sends each of the others what that one needs, no more.
Before it each rank has its columns of all rows, afterwards all columns of its rows. Row i is of rank i % ranks.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.base.ranks import Exchange, Rank
from ringkv.kernels.library import LIBRARY

AREA = 1 << 18  # floats that a rank can write at once


class Communicator(Protocol):
    """The collective operations of a rank over one kind of connection."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the float32 sum of all ranks' x."""
        ...

    def all_max(self, x: Tensor) -> Tensor:
        """Return the element-wise maximum of all ranks' x, float32."""
        ...

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Return all ranks' float32 x [N, its width] side by side, in order."""
        ...

    def columns_to_rows(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Return this rank's rows of all ranks' x [N, its width] side by side: float32 [N / ranks, all widths]."""
        ...

    def rows_to_columns(self, x: Tensor, widths: Sequence[int], own: int) -> Tensor:
        """Return this rank's `own` columns of all ranks' x [N / ranks, all widths]: float32 [N, own]."""
        ...


class _Current(threading.local):
    communicator: Communicator | None = None  # of one thread, in tests


_current = _Current()
_shared: list[Communicator] = []  # of the process


def connect(communicator: Communicator) -> None:
    """Let this process's operators use a communicator."""
    _shared[:] = [communicator]


def connect_thread(communicator: Communicator) -> None:
    """Let this thread's operators use a communicator."""
    _current.communicator = communicator


def shared_memory() -> int:
    """Return the descriptor of memory that processes can share. It is freed with the last of them."""
    return os.memfd_create("ringkv-ranks")


def connect_memory(descriptor: int, rank: Rank, seconds: float) -> None:
    """Let this process exchange results in shared memory. Operators raise RuntimeError after `seconds` of waiting."""
    torch.ops.ringkv.connect_ranks(descriptor, rank.index, rank.count, AREA, seconds)
    os.close(descriptor)  # it is mapped


def report_end(rank: int) -> None:
    """Let operators in shared memory raise RuntimeError on all ranks, because this one has ended."""
    torch.ops.ringkv.fail_rank(rank)


def all_reduce(x: Tensor, exchange: Exchange) -> Tensor:
    """Return the float32 sum of all ranks' x; x itself if there is one rank."""
    return _OPERATORS[exchange].all_reduce(x)


def all_max(x: Tensor, exchange: Exchange) -> Tensor:
    """Return the element-wise maximum of all ranks' x, float32; x itself if there is one rank."""
    return _OPERATORS[exchange].all_max(x)


def all_gather(x: Tensor, widths: Sequence[int], exchange: Exchange) -> Tensor:
    """Return all ranks' float32 x [N, its width] side by side; x itself if there is one rank."""
    return _OPERATORS[exchange].all_gather(x, list(widths))


def columns_to_rows(x: Tensor, widths: Sequence[int], exchange: Exchange) -> Tensor:
    """Return this rank's rows of all ranks' x [N, its width] side by side: float32 [N / ranks, all widths]."""
    return _OPERATORS[exchange].columns_to_rows(x, list(widths))


def rows_to_columns(x: Tensor, widths: Sequence[int], own: int, exchange: Exchange) -> Tensor:
    """Return this rank's `own` columns of all ranks' rows x [N / ranks, all widths]: float32 [N, own]."""
    return _OPERATORS[exchange].rows_to_columns(x, list(widths), own)


def _communicator() -> Communicator:
    return _current.communicator or _shared[0]


def _float32(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=torch.float32, device=x.device)


def _joined(x: Tensor, widths: Sequence[int]) -> Tensor:
    return torch.empty(x.shape[0], sum(widths), dtype=torch.float32, device=x.device)


def _rows(x: Tensor, widths: Sequence[int]) -> Tensor:
    return torch.empty(x.shape[0] // len(widths), sum(widths), dtype=torch.float32, device=x.device)


def _columns(x: Tensor, widths: Sequence[int], own: int) -> Tensor:
    return torch.empty(x.shape[0] * len(widths), own, dtype=torch.float32, device=x.device)


LIBRARY.impl("all_reduce", lambda x: _communicator().all_reduce(x), "CompositeExplicitAutograd")
LIBRARY.impl("all_max", lambda x: _communicator().all_max(x), "CompositeExplicitAutograd")
LIBRARY.impl("all_gather", lambda x, widths: _communicator().all_gather(x, widths), "CompositeExplicitAutograd")
LIBRARY.impl("columns_to_rows", lambda *args: _communicator().columns_to_rows(*args), "CompositeExplicitAutograd")
LIBRARY.impl("rows_to_columns", lambda *args: _communicator().rows_to_columns(*args), "CompositeExplicitAutograd")
for _suffix in ("", "_memory"):
    register_fake(f"ringkv::all_reduce{_suffix}", _float32, lib=LIBRARY)
    register_fake(f"ringkv::all_max{_suffix}", _float32, lib=LIBRARY)
    register_fake(f"ringkv::all_gather{_suffix}", _joined, lib=LIBRARY)
    register_fake(f"ringkv::columns_to_rows{_suffix}", _rows, lib=LIBRARY)
    register_fake(f"ringkv::rows_to_columns{_suffix}", _columns, lib=LIBRARY)


class _Operators(NamedTuple):
    all_reduce: Callable[[Tensor], Tensor]
    all_max: Callable[[Tensor], Tensor]
    all_gather: Callable[[Tensor, list[int]], Tensor]
    columns_to_rows: Callable[[Tensor, list[int]], Tensor]
    rows_to_columns: Callable[[Tensor, list[int], int], Tensor]


def _operators(suffix: str) -> _Operators:
    return _Operators(*(getattr(torch.ops.ringkv, f"{name}{suffix}") for name in _Operators._fields))


def _alone(x: Tensor, *_: object) -> Tensor:
    return x


_OPERATORS: Mapping[Exchange, _Operators] = {
    "none": _Operators(*[_alone] * len(_Operators._fields)),
    "network": _operators(""),
    "memory": _operators("_memory"),
}
