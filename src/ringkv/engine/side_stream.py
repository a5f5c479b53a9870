"""side_stream: a stream beside the current one, on which pages of a layer move while the layer before it computes.

It records events, so that CUDA graphs capture both streams.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Beside(Protocol):
    """Runs work of a layer beside that of others."""

    def fork(self, layer: int, *inputs: Tensor) -> AbstractContextManager[None]:
        """Run what is inside after what was done so far, and beside what follows until the layer's `join`.

        inputs: what it reads, except what lives as long as the engine.
        """
        ...

    def join(self, layer: int) -> None:
        """Wait for the layer's fork, if there is one."""
        ...


class _Fork(NamedTuple):
    """done: recorded at its end. inputs: without them their memory could be used again too early."""

    done: torch.cuda.Event
    inputs: Sequence[Tensor]


class SideStream:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._forks: dict[int, _Fork] = {}

    @contextmanager
    def fork(self, layer: int, *inputs: Tensor) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield
        self._forks[layer] = _Fork(self._stream.record_event(), inputs)

    def join(self, layer: int) -> None:
        if own := self._forks.pop(layer, None):
            torch.cuda.current_stream(self._device).wait_event(own.done)


class AtOnce:
    """For a CPU, where the system fetches beside: nothing waits."""

    @contextmanager
    def fork(self, layer: int, *inputs: Tensor) -> Iterator[None]:
        yield

    def join(self, layer: int) -> None:
        pass
