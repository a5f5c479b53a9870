"""compressed_tensors: matrices of integers as the library compressed-tensors (Neural Magic) stores them.

pack-quantized, 4 or 8 bits:

    weight_packed  int32 [out, in * bits / 32]    weight_zero_point  int32 [out * bits / 32, groups], if asymmetric
    weight_scale   [out, groups]                  weight_g_idx       int32 [in], the group of each input, with actorder
    weight_shape   int64 [2]

int-quantized: weight int8 [out, in], weight_scale, and weight_zero_point int8 [out, groups] if asymmetric. Packed
integers and zeros are unsigned: they exceed signed ones by half of their range.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ringkv.weights.gptq import order_of
from ringkv.weights.integer_matrix import IntegerMatrix
from ringkv.weights.module_tensors import SCALES, ModuleTensors
from ringkv.weights.packed_words import BITS, covering, unpacked_columns, unpacked_rows, words

PACKED, SCALE, ZERO, SHAPE, ORDER = (f"weight_{end}" for end in ("packed", "scale", "zero_point", "shape", "g_idx"))
SIGNED = "weight"  # of int-quantized


@dataclass(frozen=True)
class _Scaled:
    """What both layouts share."""

    tensors: ModuleTensors
    shape: tuple[int, int]
    group: int
    bits: int
    order: Tensor | None

    @property
    def name(self) -> str:
        return f"{self.tensors.module}.weight"

    @property
    def parts(self) -> tuple[str, ...]:
        every = (SIGNED, PACKED, SCALE, ZERO, SHAPE, ORDER)
        return tuple(f"{self.tensors.module}.{suffix}" for suffix in every if self.tensors.has(suffix))

    def scales(self, rows: range, groups: range) -> Tensor:
        return self.tensors.read(SCALE, rows, groups).float()


class PackedMatrix(_Scaled):
    """pack-quantized."""

    is_signed = False

    def values(self, rows: range, columns: range) -> Tensor:
        words, within = covering(columns, self.bits)
        return unpacked_columns(self.tensors.read(PACKED, rows, words), self.bits)[:, within].contiguous()

    def zeros(self, rows: range, groups: range) -> Tensor:
        if not self.tensors.has(ZERO):
            return torch.full((len(rows), len(groups)), float(1 << self.bits - 1))
        words, within = covering(rows, self.bits)
        return unpacked_rows(self.tensors.read(ZERO, words, groups), self.bits)[within].float()


class SignedMatrix(_Scaled):
    """int-quantized."""

    is_signed = True

    def values(self, rows: range, columns: range) -> Tensor:
        return self.tensors.read(SIGNED, rows, columns)

    def zeros(self, rows: range, groups: range) -> Tensor:
        if not self.tensors.has(ZERO):
            return torch.zeros(len(rows), len(groups))
        return self.tensors.read(ZERO, rows, groups).float()


def matrices(files: Mapping[str, Any], settings: Mapping[str, Any]) -> list[IntegerMatrix]:
    """Return every matrix of a checkpoint. Raises BadWeights for tensors that do not belong together."""
    modules = [name.removesuffix(f".{SCALE}") for name in files if name.endswith(f".{SCALE}")]
    found = (ModuleTensors(files, module) for module in modules)
    return [_packed(tensors) if tensors.has(PACKED) else _signed(tensors) for tensors in found]


def _packed(tensors: ModuleTensors) -> IntegerMatrix:
    packed, scales = tensors.shape(PACKED, ["I32"]), tensors.shape(SCALE, SCALES)
    tensors.shape(SHAPE, ["I64", "I32"], 1)
    shape = tensors.read(SHAPE).tolist()
    bits = [one for one in BITS if shape == [packed[0], shape[-1]] and packed[1] == words(one, shape[-1])]
    if len(bits) != 1 or not _is_divided(scales, packed[0], shape[1]):
        raise tensors.wrong(f"{PACKED} {list(packed)} and {SCALE} {list(scales)} for a matrix {shape} in 4 or 8 bits")
    if tensors.has(ZERO) and tensors.shape(ZERO, ["I32"]) != (expected := (words(bits[0], shape[0]), scales[1])):
        raise tensors.wrong(f"a {ZERO} of another shape than {list(expected)}")
    group = shape[1] // scales[1]
    return PackedMatrix(tensors, (shape[0], shape[1]), group, bits[0], order_of(tensors, ORDER, shape[1], group))


def _signed(tensors: ModuleTensors) -> IntegerMatrix:
    shape, scales = tensors.shape(SIGNED, ["I8"]), tensors.shape(SCALE, SCALES)
    if not _is_divided(scales, *shape):
        raise tensors.wrong(f"{SIGNED} {list(shape)} and {SCALE} {list(scales)}")
    if tensors.has(ZERO) and tensors.shape(ZERO, ["I8"]) != scales:
        raise tensors.wrong(f"a {ZERO} of another shape than {list(scales)}")
    group = shape[1] // scales[1]
    return SignedMatrix(tensors, (shape[0], shape[1]), group, 8, order_of(tensors, ORDER, shape[1], group))


def _is_divided(scales: tuple[int, ...], rows: int, columns: int) -> bool:
    """Whether there is a scale for each of some groups of every row."""
    return scales[0] == rows and columns % scales[1] == 0
