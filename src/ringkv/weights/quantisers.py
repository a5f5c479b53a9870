"""quantisers: the layouts of AWQ, GPTQ and compressed-tensors checkpoints.

Integers of 4 or 8 bits are packed in words of 32, the first in a word's lowest bits. For a matrix [out, in]:

awq (arXiv 2306.00978), in version "gemm" and 4 bits. A word has eight outputs, in the order 0 2 4 6 1 3 5 7.

    qweight  int32 [in, out / 8]            qzeros  int32 [groups, out / 8]
    scales   float16 [groups, out]

gptq (arXiv 2210.17323). Zeros are stored less one, except in format "gptq_v2". With desc_act ("act-order") inputs are
quantised in another order than they are stored in, so a group's inputs are anywhere.

    qweight  int32 [in * bits / 32, out]    qzeros  int32 [groups, out * bits / 32]
    scales   float16 [groups, out]          g_idx   int32 [in], the group of each input; not in every checkpoint

compressed-tensors (Neural Magic), pack-quantized. Packed integers and zeros are unsigned: they exceed signed ones by
half of their range.

    weight_packed  int32 [out, in * bits / 32]    weight_zero_point  int32 [out * bits / 32, groups], if asymmetric
    weight_scale   [out, groups]                  weight_g_idx       int32 [in], the group of each input, with actorder
    weight_shape   int64 [2]

compressed-tensors, int-quantized: weight int8 [out, in], weight_scale, and weight_zero_point int8 [out, groups] if
asymmetric.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringkv.base.json_file import read_object
from ringkv.weights.integer_matrix import IntegerMatrix, ModuleTensors

WORD = 32  # bits
SCALES = ("F16", "BF16", "F32")  # dtypes of scales
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # in a word, of each of eight outputs
FORMATS = ("format", "checkpoint_format")  # settings of GPTQ, of which either may name version 2
PACKED, SCALE, ZERO, SHAPE, ORDER = (f"weight_{end}" for end in ("packed", "scale", "zero_point", "shape", "g_idx"))


def integer_matrices(directory: Path, files: Mapping[str, Any]) -> dict[str, IntegerMatrix]:
    """Return the matrices of integers by name; none if config.json has no quantiser of these.

    files: open files by tensor. Raises BadWeights for tensors that do not belong together.
    """
    path = directory / "config.json"
    settings = (read_object(path).get("quantization_config") or {}) if path.is_file() else {}
    method = _METHODS.get(str(settings.get("quant_method"))) if isinstance(settings, dict) else None
    if method is None:
        return {}
    suffix, read = method
    modules = (name.removesuffix(f".{suffix}") for name in files if name.endswith(f".{suffix}"))
    matrices = (read(ModuleTensors(files, module), settings) for module in modules)
    return {matrix.name: matrix for matrix in matrices}


class AWQMatrix(IntegerMatrix):
    suffixes = ("qweight", "qzeros", "scales")

    def values(self, rows: range, columns: range) -> Tensor:
        return self._outputs("qweight", columns, rows)

    def scales(self, rows: range, groups: range) -> Tensor:
        return self.tensors.read("scales", groups, rows).float().T

    def zeros(self, rows: range, groups: range) -> Tensor:
        return self._outputs("qzeros", groups, rows).float()

    def _outputs(self, suffix: str, columns: range, rows: range) -> Tensor:
        """Return uint8 [rows, columns] of a tensor that packs outputs."""
        words, within = _covering(rows, self.bits)
        return _unpacked_rows(self.tensors.read(suffix, columns, words).T, self.bits, AWQ_PLACES)[within]


def _awq(tensors: ModuleTensors, settings: Mapping[str, Any]) -> IntegerMatrix:
    inputs, words = tensors.shape("qweight", ["I32"])
    scales, zeros = tensors.shape("scales", SCALES), tensors.shape("qzeros", ["I32"])
    outputs = words * len(AWQ_PLACES)
    if scales != (zeros[0], outputs) or zeros[1] != words or inputs % scales[0]:
        raise tensors.wrong(f"qweight {[inputs, words]}, scales {list(scales)} and qzeros {list(zeros)}")
    return AWQMatrix(tensors, (outputs, inputs), inputs // scales[0], WORD // len(AWQ_PLACES))


@dataclass(frozen=True)
class GPTQMatrix(IntegerMatrix):
    suffixes = ("qweight", "qzeros", "scales", "g_idx")

    added: int = 1  # to stored zeros

    def values(self, rows: range, columns: range) -> Tensor:
        words, within = _covering(columns, self.bits)
        return _unpacked_columns(self.tensors.read("qweight", words, rows).T, self.bits)[:, within].contiguous()

    def scales(self, rows: range, groups: range) -> Tensor:
        return self.tensors.read("scales", groups, rows).float().T

    def zeros(self, rows: range, groups: range) -> Tensor:
        words, within = _covering(rows, self.bits)
        zeros = _unpacked_rows(self.tensors.read("qzeros", groups, words).T, self.bits)
        return zeros[within].float() + self.added


def _gptq(tensors: ModuleTensors, settings: Mapping[str, Any]) -> IntegerMatrix:
    bits, added = int(settings["bits"]), 0 if "gptq_v2" in map(settings.get, FORMATS) else 1
    words, outputs = tensors.shape("qweight", ["I32"])
    scales, zeros = tensors.shape("scales", SCALES), tensors.shape("qzeros", ["I32"])
    inputs = words * WORD // bits
    if scales[1] != outputs or zeros != (scales[0], outputs * bits // WORD) or inputs % scales[0]:
        raise tensors.wrong(
            f"qweight {[words, outputs]}, scales {list(scales)} and qzeros {list(zeros)} for {bits} bits"
        )
    group = inputs // scales[0]
    return GPTQMatrix(tensors, (outputs, inputs), group, bits, _order(tensors, "g_idx", inputs, group), added)


def _order(tensors: ModuleTensors, suffix: str, inputs: int, group: int) -> Tensor | None:
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


class PackedMatrix(IntegerMatrix):
    """pack-quantized."""

    suffixes = ("weight", PACKED, SCALE, ZERO, SHAPE, ORDER)

    def values(self, rows: range, columns: range) -> Tensor:
        words, within = _covering(columns, self.bits)
        return _unpacked_columns(self.tensors.read(PACKED, rows, words), self.bits)[:, within].contiguous()

    def scales(self, rows: range, groups: range) -> Tensor:
        return self.tensors.read(SCALE, rows, groups).float()

    def zeros(self, rows: range, groups: range) -> Tensor:
        if not self.tensors.has(ZERO):
            return torch.full((len(rows), len(groups)), float(1 << self.bits - 1))
        words, within = _covering(rows, self.bits)
        return _unpacked_rows(self.tensors.read(ZERO, words, groups), self.bits)[within].float()


class SignedMatrix(PackedMatrix):
    """int-quantized."""

    is_signed = True

    def values(self, rows: range, columns: range) -> Tensor:
        return self.tensors.read("weight", rows, columns)

    def zeros(self, rows: range, groups: range) -> Tensor:
        if not self.tensors.has(ZERO):
            return torch.zeros(len(rows), len(groups))
        return self.tensors.read(ZERO, rows, groups).float()


def _compressed(tensors: ModuleTensors, settings: Mapping[str, Any]) -> IntegerMatrix:
    scales, is_packed = tensors.shape(SCALE, SCALES), tensors.has(PACKED)
    if not is_packed:
        shape, bits = tensors.shape("weight", ["I8"]), 8
        stored, zeros = f"weight {list(shape)}", scales
    else:
        packed = tensors.shape(PACKED, ["I32"])
        tensors.shape(SHAPE, ["I64", "I32"], 1)
        shape = tuple(tensors.read(SHAPE).tolist())
        stored = f"{PACKED} {list(packed)} and {SHAPE} {list(shape)}"
        fitting = [bits for bits in (4, 8) if shape == (packed[0], shape[-1]) and packed[1] == _words(bits, shape[-1])]
        if len(fitting) != 1:
            raise tensors.wrong(f"{stored}, of neither 4 nor 8 bits")
        bits = fitting[0]
        zeros = _words(bits, shape[0]), scales[1]
    if scales[0] != shape[0] or shape[1] % scales[1]:
        raise tensors.wrong(f"{stored} and {SCALE} {list(scales)}")
    if tensors.has(ZERO) and tensors.shape(ZERO, ["I32" if is_packed else "I8"]) != zeros:
        raise tensors.wrong(f"a {ZERO} of another shape than {list(zeros)}")
    group = shape[1] // scales[1]
    matrix = PackedMatrix if is_packed else SignedMatrix
    return matrix(tensors, (shape[0], shape[1]), group, bits, _order(tensors, ORDER, shape[1], group))


_METHODS: Mapping[str, tuple[str, Callable[[ModuleTensors, Mapping[str, Any]], IntegerMatrix]]] = {
    "awq": ("qweight", _awq),
    "gptq": ("qweight", _gptq),
    "compressed-tensors": (SCALE, _compressed),
    "ringkv-rotated": (SCALE, _compressed),  # `rotate.tensors` writes them
}
"""By quant_method: the suffix of a tensor that each matrix has, and what makes one of its tensors and settings.

Settings are the quantization_config, which `models` has checked.
"""


def _words(bits: int, integers: int) -> int:
    """Return how many words so many integers take."""
    return -(-integers * bits // WORD)


def _unpacked_columns(words: Tensor, bits: int) -> Tensor:
    """Return uint8 [n, w * 32 / bits] of words int32 [n, w] that have columns."""
    pairs = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # sets strides of single words, too
    return pairs if bits == 8 else torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)


def _unpacked_rows(words: Tensor, bits: int, places: Sequence[int] = range(WORD)) -> Tensor:
    """Return uint8 [w * 32 / bits, m] of words int32 [w, m] that have rows.

    places: where in a word each row is, counted in integers from its lowest bits.
    """
    rows = torch.empty(len(words), WORD // bits, words.shape[1], dtype=torch.uint8)
    contiguous = words.contiguous()
    for row, place in zip(rows.unbind(1), places, strict=False):
        row.copy_((contiguous >> bits * place).bitwise_and_((1 << bits) - 1))
    return rows.flatten(0, 1)


def _covering(span: range, bits: int) -> tuple[range, slice]:
    """Return the words that have these integers, and where the integers are in the unpacked words."""
    each = WORD // bits
    first = span.start // each
    skipped = span.start - first * each
    return range(first, -(-span.stop // each)), slice(skipped, skipped + len(span))
