"""network: the communicator of ranks on several machines, over torch.distributed."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from ringkv.base.ranks import Rank

NCCL_SECONDS = 600.0  # one rank may still compile graphs while another waits for it on its GPU


class Network:
    """A `collective.Communicator` over gloo, or NCCL for GPUs. It uses the default process group.

    All ranks get the same bits: each element is summed by one rank, in one order, and sent to all.
    """

    def __init__(self, rank: Rank, address: str, port: int, seconds: float, device: torch.device) -> None:
        """address, port: where the first rank listens. Raises RuntimeError if ranks do not connect within `seconds`.

        device: of this rank. Sums over NCCL can be part of a CUDA graph; they wait for other ranks NCCL_SECONDS.
        """
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=rank.index,
            world_size=rank.count,
            timeout=timedelta(seconds=NCCL_SECONDS if on_gpu else seconds),
            device_id=device if on_gpu else None,
        )
        self._count = rank.count

    def all_reduce(self, x: Tensor) -> Tensor:
        return _reduced(x, dist.ReduceOp.SUM)

    def all_max(self, x: Tensor) -> Tensor:
        return _reduced(x, dist.ReduceOp.MAX)

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Pad parts to equal width, as both backends require."""
        widest = max(widths)
        padded = torch.nn.functional.pad(x.float(), (0, widest - x.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in widths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    def columns_to_rows(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        rows = len(x) // self._count
        given = x.float().unflatten(0, (rows, self._count)).transpose(0, 1).flatten()
        parts = _exchanged(given, [rows * x.shape[1]] * self._count, [rows * width for width in widths])
        return torch.cat([part.view(rows, -1) for part in parts], 1)

    def rows_to_columns(self, x: Tensor, widths: Sequence[int], width: int) -> Tensor:
        given = torch.cat([part.flatten() for part in x.float().split(list(widths), 1)])
        parts = _exchanged(given, [len(x) * sent for sent in widths], [len(x) * width] * self._count)
        return torch.stack([part.view(len(x), width) for part in parts], 1).flatten(0, 1)


def _exchanged(given: Tensor, sent: list[int], received: list[int]) -> Sequence[Tensor]:
    """Send each rank so many elements of `given`, in the order of the ranks, and return what each sends here."""
    taken = given.new_empty(sum(received))
    dist.all_to_all_single(taken, given, received, sent)
    parts: Sequence[Tensor] = taken.split(received)
    return parts


def abort() -> None:
    """End what waits for other ranks with an error: NCCL does not notice that one has ended."""
    distributed_c10d._abort_process_group()


def _reduced(x: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    total = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    dist.all_reduce(total, operation)
    return total
