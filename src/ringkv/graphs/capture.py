"""Capture: on a GPU, record one step's launches once, and replay them as one CUDA graph.

Not yet run on a device by this project; the CPU replays its ahead-of-time graphs one by one instead.
"""

from collections.abc import Callable

import torch

Step = Callable[[], None]
"""Work on static buffers: reads and writes the same tensors every time."""

Capture = Callable[[Step], Step]


def as_it_is(step: Step) -> Step:
    """No capture: the CPU has nothing to gain from it."""
    return step


def cuda_graph(step: Step) -> Step:
    """Warm up on a side stream, as capture asks, then record. The step must not synchronise with the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
