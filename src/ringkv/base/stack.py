"""Stack: one matrix of a checkpoint tensor that holds a matrix, or a bias, for each expert."""

from typing import NamedTuple


class Stack(NamedTuple):
    """Some rows of matrix `at` of `matrices`: each `step`-th of its `rows`, from `offset` on.

    transposed: the tensor is [matrices, in, rows] instead of [matrices, rows, in]. Biases are [matrices, rows].
    """

    matrices: int
    at: int
    rows: int
    step: int = 1
    offset: int = 0
    transposed: bool = True

    def stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the tensor, of which this stack has `shape` [n, in] or [n]."""
        return (self.matrices, *shape[1:], self.rows) if self.transposed else (self.matrices, self.rows, *shape[1:])

    def span(self, first: int, n: int) -> slice:
        """Return the places in the matrix of rows first .. first+n-1 of these."""
        start = self.offset + first * self.step
        return slice(start, start + (n - 1) * self.step + 1, self.step)
