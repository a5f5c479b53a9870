"""gptq: matrices in 4 or 8 bits with a scale and a zero for each group of inputs (arXiv 2210.17323).

    qweight  int32 [in * bits / 32, out]    qzeros  int32 [groups, out * bits / 32]
    scales   float16 [groups, out]          g_idx   int32 [in], the group of each input

Zeros are stored less one, except in format "gptq_v2". With desc_act ("act-order") inputs are quantised in another order
than they are stored in, so a group's inputs are anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ringkv.weights.integer_matrix import IntegerMatrix
from ringkv.weights.module_tensors import SCALES, ModuleTensors
from ringkv.weights.packed_words import WORD, covering, unpacked_columns, unpacked_rows

SUFFIXES = ("qweight", "qzeros", "scales")
ORDER = "g_idx"  # is not in every checkpoint without desc_act
FORMATS = ("format", "checkpoint_format")  # settings, of which either may name version 2


@dataclass(frozen=True)
class GPTQMatrix:
    is_signed = False

    tensors: ModuleTensors
    shape: tuple[int, int]
    group: int
    bits: int
    added: int  # to stored zeros
    order: Tensor | None

    @property
    def name(self) -> str:
        return f"{self.tensors.module}.weight"

    @property
    def parts(self) -> tuple[str, ...]:
        found = (*SUFFIXES, ORDER) if self.tensors.has(ORDER) else SUFFIXES
        return tuple(f"{self.tensors.module}.{suffix}" for suffix in found)

    def values(self, rows: range, columns: range) -> Tensor:
        words, within = covering(columns, self.bits)
        found = self.tensors.read("qweight", words, rows)
        return unpacked_columns(found.T, self.bits)[:, within].contiguous()

    def scales(self, rows: range, groups: range) -> Tensor:
        found = self.tensors.read("scales", groups, rows)
        return found.float().T

    def zeros(self, rows: range, groups: range) -> Tensor:
        words, within = covering(rows, self.bits)
        found = unpacked_rows(self.tensors.read("qzeros", groups, words).T, self.bits)
        return found[within].float() + self.added


def matrices(files: Mapping[str, Any], settings: Mapping[str, Any]) -> list[IntegerMatrix]:
    """Return every matrix of a checkpoint. Raises BadWeights for tensors that do not belong together."""
    bits, added = int(settings["bits"]), 0 if "gptq_v2" in map(settings.get, FORMATS) else 1
    modules = [name.removesuffix(".qweight") for name in files if name.endswith(".qweight")]
    return [_matrix(ModuleTensors(files, module), bits, added) for module in modules]


def _matrix(tensors: ModuleTensors, bits: int, added: int) -> IntegerMatrix:
    words, outputs = tensors.shape("qweight", ["I32"])
    scales, zeros = tensors.shape("scales", SCALES), tensors.shape("qzeros", ["I32"])
    inputs = words * WORD // bits
    if scales[1] != outputs or zeros != (scales[0], outputs * bits // WORD) or inputs % scales[0]:
        raise tensors.wrong(
            f"qweight {[words, outputs]}, scales {list(scales)} and qzeros {list(zeros)} for {bits} bits"
        )
    group = inputs // scales[0]
    return GPTQMatrix(tensors, (outputs, inputs), group, bits, added, order_of(tensors, ORDER, inputs, group))


def order_of(tensors: ModuleTensors, suffix: str, inputs: int, group: int) -> Tensor | None:
    """Return int64 [in] of the tensor with each column's group; None if there is none or groups are runs of columns."""
    if not tensors.has(suffix):
        return None
    if tensors.shape(suffix, ["I32", "I64"], 1) != (inputs,):
        raise tensors.wrong(f"{suffix} for other than {inputs:,} inputs")
    order = tensors.read(suffix).long()
    if torch.equal(order, torch.arange(inputs) // group):
        return None
    if order.min() < 0 or order.max() >= inputs // group:
        raise tensors.wrong(f"{suffix} outside of its {inputs // group:,} groups")
    return order
