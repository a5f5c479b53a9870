"""awq: matrices in 4 bits with a scale and a zero for each group of inputs (arXiv 2306.00978), in version "gemm".

    qweight  int32 [in, out / 8]    scales  float16 [groups, out]    qzeros  int32 [groups, out / 8]

A word has eight outputs, in the order 0 2 4 6 1 3 5 7 from its lowest bits on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ringkv.weights.integer_matrix import IntegerMatrix
from ringkv.weights.module_tensors import SCALES, ModuleTensors
from ringkv.weights.packed_words import WORD, covering, unpacked_rows

BITS = 4
EACH = WORD // BITS
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # in a word, of each of eight outputs
SUFFIXES = ("qweight", "qzeros", "scales")


@dataclass(frozen=True)
class AWQMatrix:
    is_signed = False

    tensors: ModuleTensors
    shape: tuple[int, int]
    group: int
    bits: int = BITS
    order: Tensor | None = None

    @property
    def name(self) -> str:
        return f"{self.tensors.module}.weight"

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(f"{self.tensors.module}.{suffix}" for suffix in SUFFIXES)

    def values(self, rows: range, columns: range) -> Tensor:
        return self._outputs("qweight", columns, rows)

    def scales(self, rows: range, groups: range) -> Tensor:
        return self.tensors.read("scales", groups, rows).float().T

    def zeros(self, rows: range, groups: range) -> Tensor:
        return self._outputs("qzeros", groups, rows).float()

    def _outputs(self, suffix: str, at: range, rows: range) -> Tensor:
        """Return uint8 [rows, at] of a tensor that packs outputs."""
        words, within = covering(rows, BITS)
        return unpacked_rows(self.tensors.read(suffix, at, words).T, BITS, PLACES)[within]


def matrices(files: Mapping[str, Any], settings: Mapping[str, Any]) -> list[IntegerMatrix]:
    """Return every matrix of a checkpoint. Raises BadWeights for tensors that do not belong together."""
    modules = [name.removesuffix(".qweight") for name in files if name.endswith(".qweight")]
    return [_matrix(ModuleTensors(files, module)) for module in modules]


def _matrix(tensors: ModuleTensors) -> IntegerMatrix:
    inputs, words = tensors.shape("qweight", ["I32"])
    scales, zeros = tensors.shape("scales", SCALES), tensors.shape("qzeros", ["I32"])
    if scales != (zeros[0], words * EACH) or zeros[1] != words or inputs % scales[0]:
        raise tensors.wrong(f"qweight {[inputs, words]}, scales {list(scales)} and qzeros {list(zeros)}")
    return AWQMatrix(tensors, (words * EACH, inputs), inputs // scales[0])
