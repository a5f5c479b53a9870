"""fp8: matrices in 8-bit floats with a float32 scale for each block of 128 x 128 (DeepSeek-V3, arXiv 2412.19437)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

FP8 = "F8_E4M3"  # safetensors' name of the dtype
SCALES = "_scale_inv"  # ends the name of a matrix's scales [out / 128, in / 128], rounded up
BLOCK = 128  # rows and columns of a block


def blocks(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the scales of a matrix of this shape."""
    return tuple(-(-size // BLOCK) for size in shape)


def dequantise(rows: Any, scales: Tensor, first: int, out: Tensor, column: int = 0) -> None:
    """Fill `out` [n, m] with rows first .. first+n-1, a row of blocks at a time, and columns column .. column+m-1.

    rows: a safetensors slice of the fp8 matrix. scales: float32, one for each block.
    """
    row, stop, columns = first, first + len(out), slice(column, column + out.shape[1])
    while row < stop:
        end = min(stop, (row // BLOCK + 1) * BLOCK)
        scale = scales[row // BLOCK].repeat_interleave(BLOCK)[columns]
        out[row - first : end - first] = rows[row:end, columns].float() * scale
        row = end
