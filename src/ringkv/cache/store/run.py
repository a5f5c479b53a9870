"""Run: the bytes of a saved row, in blocks of a host memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(eq=False)
class Run:
    """memory: uint8 [blocks, bytes of a block]. blocks: those of the run, in order; none once it is dropped."""

    memory: Tensor
    blocks: list[int]

    def write(self, tensors: Iterable[Tensor]) -> None:
        """Write the elements of tensors, one after the other. A tensor that lies in one block has no copy."""
        at = 0
        for tensor in tensors:
            pieces = list(self._pieces(at, tensor.nbytes))
            at += tensor.nbytes
            if _is_view(pieces, tensor.dtype):
                pieces[0].view(tensor.dtype).view(tensor.shape).copy_(tensor)
                continue
            elements = tensor.contiguous().flatten().view(torch.uint8)
            for piece, part in zip(pieces, elements.split([len(piece) for piece in pieces]), strict=True):
                piece.copy_(part)

    def read(self, at: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Return the tensor whose bytes begin at `at`: a view if it lies in one block, else a copy."""
        pieces = list(self._pieces(at, prod(shape) * dtype.itemsize))
        found = pieces[0] if _is_view(pieces, dtype) else torch.cat([*pieces, self.memory.new_empty(0)])
        return found.view(dtype).view(shape)

    def _pieces(self, at: int, size: int) -> Iterator[Tensor]:
        """Yield so many bytes from `at` on, uint8 [n] of each block that has some of them."""
        block, stop = self.memory.shape[1], at + size
        while at < stop:
            first = at % block
            count = min(stop - at, block - first)
            yield self.memory[self.blocks[at // block], first : first + count]
            at += count


def _is_view(pieces: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Return whether the bytes are in one place that can be read as elements of a dtype."""
    return len(pieces) == 1 and pieces[0].storage_offset() % dtype.itemsize == 0
