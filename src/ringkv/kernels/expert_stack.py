"""ExpertStack: the matrices of the experts of one layer, which the reference and the Triton kernels take."""

from typing import NamedTuple

from torch import Tensor


class ExpertStack(NamedTuple):
    """The matrices of so many `experts`, each [2 * I, hidden] and [hidden, I] or packed as for `gated` and `linear`.

    They are stacked along the first dimension, as are biases [experts * 2 * I] and [experts * hidden].
    """

    gate_up: Tensor
    down: Tensor
    experts: int
    activation: str = "silu"
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
