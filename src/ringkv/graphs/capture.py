"""Capture: on a GPU, record one step's launches once, and replay them as one CUDA graph.

The CPU replays its ahead-of-time graphs one by one instead.
"""

from collections.abc import Callable

import torch

StaticStep = Callable[[], None]
"""A step on static buffers: it reads and writes the same tensors every time."""

Capture = Callable[[StaticStep], StaticStep]

WARM_UPS = 3  # kernels are compiled; libraries select theirs and allocate workspaces


def no_capture(step: StaticStep) -> StaticStep:
    """Return the step uncaptured; capture gains nothing on a CPU."""
    return step


class CudaGraphs:
    """Records steps that are replayed on one stream, never two at a time, so all share one memory pool.

    Tensors that a step allocates are valid until another step is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: StaticStep) -> StaticStep:
        """Warm up on a side stream, as capture requires, then record. The step must not synchronise with the host."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process (a server in this process, a profiler) may allocate meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
        return graph.replay
