"""Step: the arguments of decode attention, which its kernels share."""

from typing import NamedTuple

from torch import Tensor

from ringkv.kernels.gpu.strided import with_contiguous_elements
from ringkv.kernels.slots import Rows, Slots


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
