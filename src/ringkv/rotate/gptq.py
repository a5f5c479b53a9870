"""gptq: rounds a matrix column by column; later columns compensate the error of each (arXiv 2210.17323).

O outputs, I inputs.
"""

import torch
from torch import Tensor

from ringkv.rotate.grid import Grid, Levels, Rounded

BLOCK = 128  # columns that are rounded before the others are changed; a multiple of a grid's groups
DAMPING = 0.01  # of the mean diagonal


def rounded(weight: Tensor, hessian: Tensor, grid: Grid) -> Rounded:
    """Round [O, I] so that products with inputs change least. hessian: the sum of x x^T over inputs x, [I, I]."""
    left, factor = weight.float().clone(), _factor(hessian)
    columns, group = left.shape[1], grid.group or left.shape[1]
    q, levels = torch.empty_like(left, dtype=torch.int8), []
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        block, errors = left[:, start:stop], torch.empty_like(left[:, start:stop])
        for column in range(start, stop):
            if column % group == 0:
                levels.append(grid.levels(left[:, column : column + group]))
            rest = block[:, column - start :]
            nearest = grid.nearest(rest[:, :1], levels[-1])
            q[:, column] = nearest[:, 0].to(torch.int8)
            error = rest[:, 0] - levels[-1].values(nearest)[:, 0]
            errors[:, column - start] = error / factor[column, column]
            rest -= errors[:, column - start, None] * factor[column, column:stop]
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return Rounded(q, Levels(*(torch.stack(each, 1) for each in zip(*levels, strict=True))))


def _factor(hessian: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse, damped. An input that is always zero has a diagonal of one."""
    damped, diagonal = hessian.clone(), hessian.diagonal()
    damped.diagonal().add_((diagonal == 0).float() + DAMPING * diagonal.mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor
