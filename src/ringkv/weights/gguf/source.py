"""Where a GGUF has a tensor of the Hugging Face layout, and how it is read in blocks of rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown_names
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.safetensors_writer import TensorSpec, to_bfloat16

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class StoredRows:
    """A tensor of the GGUF, or one matrix of a stack.

    expert: which matrix. heads: its rows are those of so many heads, with the halves of rotary pairs interleaved; None:
    they are in order. shift: what elements in the GGUF exceed those in Hugging Face layout.
    """

    name: str
    spec: TensorSpec  # in Hugging Face layout
    expert: int | None = None
    heads: int | None = None
    shift: float = 0.0

    def blocks(self, gguf: GGUF) -> Iterator[Array]:
        """Yield its elements as they are stored in its dtype, in row order. Raises BadWeights if one is not finite."""
        for values in gguf.rows(self.name, self.order(gguf), expert=self.expert):
            yield stored(values - np.float32(self.shift) if self.shift else values, self.spec.dtype)

    def order(self, gguf: GGUF) -> npt.NDArray[np.intp] | None:
        """Return the GGUF's row for each row; None if they are in order.

        Hugging Face stores the halves of a head's rotary pairs one after the other.
        """
        if self.heads is None:
            return None
        rows = np.arange(gguf.shape(self.name)[0])
        return rows.reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True)
class Merged:
    """A tensor that the GGUF has in several. blocks: as of `StoredRows`."""

    spec: TensorSpec
    blocks: Callable[[GGUF], Iterator[Array]]


Source = StoredRows | Merged


def stored(values: npt.NDArray[np.float32], dtype: str = "BF16") -> Array:
    """Return values as safetensors stores them: "F32", or "BF16" as its bits."""
    return values.astype("<f4") if dtype == "F32" else to_bfloat16(values)


STACKS = {"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)}
"""The tensors of a GGUF in each stack."""


def stack_shape(gguf: GGUF, names: Sequence[str], dimensions: int) -> tuple[int, ...]:
    """Return the shape of all these tensors. Raises BadWeights if they differ or have other dimensions."""
    shapes = {gguf.shape(name) for name in names}
    first = gguf.shape(names[0])
    if len(shapes) > 1 or len(first) != dimensions:
        raise BadWeights(
            f"{gguf.path} has {shown_names(names)} of shapes {', '.join(map(str, sorted(shapes)))}, "
            f"{dimensions} equal sizes are needed; fetch it again"
        )
    return first
