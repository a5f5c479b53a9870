"""side_stream: a stream beside the current one, on which pages of the next layers move while a layer computes.

`fork` and `join` record events, so CUDA graphs capture both streams. Each thread has a stream of its own, since it may
capture while others run.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class _Fork(NamedTuple):
    """done: recorded at its end. inputs: what it reads; without it their memory could be used again too early."""

    done: torch.cuda.Event
    inputs: Sequence[Tensor]


class _Own(threading.local):
    def __init__(self) -> None:
        self.streams: dict[torch.device, torch.cuda.Stream] = {}
        self.forks: dict[int, _Fork] = {}  # by the address of what they write


_OWN = _Own()


@contextmanager
def fork(output: Tensor, *inputs: Tensor) -> Iterator[None]:
    """Run what is inside beside the current stream, after what this has done so far. It writes `output`, beside others.

    inputs: what it reads, beside what lives as long as the engine.
    """
    device = output.device
    if device not in _OWN.streams:
        _OWN.streams[device] = torch.cuda.Stream(device)
    side = _OWN.streams[device]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    _OWN.forks[output.data_ptr()] = _Fork(side.record_event(), inputs)


def join(output: Tensor) -> None:
    """Have the current stream wait for the fork that writes `output`; for all forks if none of them is known to."""
    if not _OWN.forks:
        return
    own = _OWN.forks.pop(output.data_ptr(), None)
    for one in [own] if own else _OWN.forks.values():
        torch.cuda.current_stream(output.device).wait_event(one.done)
