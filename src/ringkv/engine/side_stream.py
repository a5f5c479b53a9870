"""side_stream: a stream beside the current one, on which pages of a layer move while the layer before it computes.

It records events, so that CUDA graphs capture both streams.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class _Fork(NamedTuple):
    """done: recorded at its end. inputs: without them their memory could be used again too early."""

    done: torch.cuda.Event
    inputs: Sequence[Tensor]


class SideStream:
    """A stream of a GPU. Its work belongs to a layer."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._forks: dict[int, _Fork] = {}

    @contextmanager
    def fork(self, layer: int, *inputs: Tensor) -> Iterator[None]:
        """Run what is inside after what was done so far, and beside what follows until the layer's `join`.

        inputs: what it reads, except what lives as long as the engine.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield
        self._forks[layer] = _Fork(self._stream.record_event(), inputs)

    def join(self, layer: int) -> None:
        """Have the current stream wait for the layer's fork, if there is one."""
        if own := self._forks.pop(layer, None):
            torch.cuda.current_stream(self._device).wait_event(own.done)


class NoStream:
    """For a CPU, where the system fetches beside: nothing waits."""

    @contextmanager
    def fork(self, layer: int, *inputs: Tensor) -> Iterator[None]:
        yield

    def join(self, layer: int) -> None:
        pass
