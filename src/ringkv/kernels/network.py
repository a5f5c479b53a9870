"""network: the communicator of ranks on several machines, over torch.distributed."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ringkv.base.ranks import Rank


class Network:
    """A `collective.Communicator` over gloo, which gives all ranks the same bits. It uses the default process group."""

    def __init__(self, rank: Rank, address: str, port: int, seconds: float) -> None:
        """address, port: where the first rank listens. Raises RuntimeError if ranks do not connect within `seconds`."""
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=rank.index,
            world_size=rank.count,
            timeout=timedelta(seconds=seconds),
        )

    def all_reduce(self, x: Tensor) -> Tensor:
        return _reduced(x, dist.ReduceOp.SUM)

    def all_max(self, x: Tensor) -> Tensor:
        return _reduced(x, dist.ReduceOp.MAX)

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Pad parts to equal width, as gloo requires."""
        widest = max(widths)
        padded = torch.nn.functional.pad(x.float(), (0, widest - x.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in widths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)


def _reduced(x: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    total = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    dist.all_reduce(total, operation)
    return total
