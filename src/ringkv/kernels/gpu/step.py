"""Step: the arguments of decode attention, which its kernels share; they take tensors with their strides as tuples."""

from typing import Any, NamedTuple

from torch import Tensor

from ringkv.kernels.slots import Rows, Slots

Strided = tuple[Any, ...]
"""A tensor, and the strides of its first dimensions in elements."""


def strided(tensor: Tensor, dimensions: int) -> Strided:
    """Return a tensor and the strides of so many dimensions. A kernel knows the others, which are contiguous."""
    return tensor, *tensor.stride()[:dimensions]


def new_rows(k: Tensor | None, v: Tensor | None) -> tuple[Strided, Strided] | None:
    """Return new keys and values [B, H, D], if there are any."""
    return None if k is None or v is None else (strided(k, 2), strided(v, 2))


def planes_of(*planes: Tensor) -> tuple[Strided, ...]:
    """Return planes [S, H, C, ...] with the strides of a slot and a head. The entries of a head are contiguous."""
    for plane in planes:
        assert (plane.stride(2), plane.stride(-1)) == (plane.shape[3:].numel(), 1)
    return tuple(strided(plane, 2) for plane in planes)


def with_contiguous_elements(tensor: Tensor) -> Tensor:
    """Return a tensor whose last dimension is contiguous, the same one if its is."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Step(NamedTuple):
    """q [B, H, G, D]; k, v [B, H, D], or None; see `kernels.decode_attend`. Elements of vectors are contiguous."""

    q: Tensor
    k: Tensor | None
    v: Tensor | None
    slots: Slots
    rows: Rows
    scale: float

    @classmethod
    def of(cls, q: Tensor, k: Tensor | None, v: Tensor | None, slots: Slots, rows: Rows, scale: float) -> "Step":
        k, v = (new if new is None else with_contiguous_elements(new) for new in (k, v))
        return cls(with_contiguous_elements(q), k, v, slots, rows, scale)

    @property
    def centers(self) -> Tensor:
        """The centers of encoded slots."""
        assert self.slots.centers is not None
        return self.slots.centers
