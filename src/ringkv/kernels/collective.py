"""collective: collective operations of ranks, as operators that a static graph can contain.

Every rank calls the same operators in the same order. All ranks get the same bits.

N rows. `columns_to_rows` and its reverse are all-to-all: a rank sends each of the others what that one needs, no more.
Before it each rank has its columns of all rows, afterwards all columns of its rows. Row i is of rank i % ranks.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.base.ranks import Exchange, Rank
from ringkv.kernels.library import LIBRARY

AREA = 1 << 18  # floats that a rank can write at once


class Communicator(Protocol):
    """The collective operations of a rank over one kind of connection, as the functions of these names below."""

    def all_reduce(self, x: Tensor) -> Tensor: ...
    def all_max(self, x: Tensor) -> Tensor: ...
    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor: ...
    def columns_to_rows(self, x: Tensor, widths: Sequence[int]) -> Tensor: ...
    def rows_to_columns(self, x: Tensor, widths: Sequence[int], width: int) -> Tensor: ...


_connected: list[Communicator] = []


def connect(communicator: Communicator) -> None:
    """Let this process's operators use a communicator."""
    _connected[:] = [communicator]


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
    return x if exchange == "none" else _OPERATORS[exchange]["all_reduce"](x)


def all_max(x: Tensor, exchange: Exchange) -> Tensor:
    """Return the element-wise maximum of all ranks' x, float32; x itself if there is one rank."""
    return x if exchange == "none" else _OPERATORS[exchange]["all_max"](x)


def all_gather(x: Tensor, widths: Sequence[int], exchange: Exchange) -> Tensor:
    """Return all ranks' float32 x [N, its width] side by side; x itself if there is one rank."""
    return x if exchange == "none" else _OPERATORS[exchange]["all_gather"](x, list(widths))


def columns_to_rows(x: Tensor, widths: Sequence[int], exchange: Exchange) -> Tensor:
    """Return this rank's rows of all ranks' x [N, its width] side by side: float32 [N / ranks, all widths]."""
    return x if exchange == "none" else _OPERATORS[exchange]["columns_to_rows"](x, list(widths))


def rows_to_columns(x: Tensor, widths: Sequence[int], width: int, exchange: Exchange) -> Tensor:
    """Return this rank's `width` columns of all ranks' rows x [N / ranks, all widths]: float32 [N, width]."""
    return x if exchange == "none" else _OPERATORS[exchange]["rows_to_columns"](x, list(widths), width)


_SHAPES: Mapping[str, Callable[..., tuple[int, ...]]] = {
    "all_reduce": lambda x: x.shape,
    "all_max": lambda x: x.shape,
    "all_gather": lambda x, widths: (x.shape[0], sum(widths)),
    "columns_to_rows": lambda x, widths: (x.shape[0] // len(widths), sum(widths)),
    "rows_to_columns": lambda x, widths, width: (x.shape[0] * len(widths), width),
}
"""The shapes of what operators return."""


def _define(name: str, shape: Callable[..., tuple[int, ...]]) -> None:
    """Register the operator that uses this process's communicator, and the shape function of both operators."""

    def communicate(*arguments: Any) -> Tensor:
        out: Tensor = getattr(_connected[0], name)(*arguments)
        return out

    def empty(x: Tensor, *arguments: Any) -> Tensor:
        return torch.empty(shape(x, *arguments), dtype=torch.float32, device=x.device)

    LIBRARY.impl(name, communicate, "CompositeExplicitAutograd")
    for suffix in ("", "_memory"):
        register_fake(f"ringkv::{name}{suffix}", empty, lib=LIBRARY)


for _name, _shape in _SHAPES.items():
    _define(_name, _shape)

_OPERATORS: Mapping[Exchange, Mapping[str, Callable[..., Tensor]]] = {
    "network": {name: getattr(torch.ops.ringkv, name) for name in _SHAPES},
    "memory": {name: getattr(torch.ops.ringkv, f"{name}_memory") for name in _SHAPES},
}
