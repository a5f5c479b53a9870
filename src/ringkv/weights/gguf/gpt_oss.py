"""Gpt-oss' settings and experts, whose gates and ups a GGUF has as two stacks.

Hugging Face layout has one stack [experts, in, out], in which rows of gates and ups alternate. Stacks in MXFP4 remain
in MXFP4: blocks [experts, out, in / 32, 16] and exponents [experts, out, in / 32].
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringkv.weights.gguf.fields import grouped
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import rope_scaling
from ringkv.weights.gguf.source import STACKS, Source, stack_shape, stored
from ringkv.weights.mxfp4_shapes import BLOCKS, BYTES, EXPONENTS
from ringkv.weights.safetensors_writer import TensorSpec

LARGEST_EXPONENT = 252  # 6, the largest element, times 2 ** (252 - 127) is finite in float32
GROUP = 2 * BYTES
UNSCALED = {"rope_type": "default"}  # a config.json without rope_scaling has YaRN


def gpt_oss(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the rotary embedding, and how experts are stored.

    YaRN's range of pairs is not rounded to whole ones, which no metadata key says.
    """
    scaling = rope_scaling(gguf, kind, grouped(gguf, kind)["head_dim"])
    packed = any(gguf.kind(name) == "MXFP4" for name in gguf.names)
    return {
        "rope_scaling": {**scaling, "truncate": False} if scaling else UNSCALED,
        **({"quantization_config": {"quant_method": "mxfp4"}} if packed else {}),
    }


def experts(gguf: GGUF, layer: str) -> Iterator[tuple[str, Source]]:
    """Yield the tensors of a layer's experts. Raises BadWeights if gates and ups differ in shape."""
    for ours, stacks in STACKS.items():
        weights, biases = ([f"{layer}{stack}.{end}" for stack in stacks] for end in ("weight", "bias"))
        if all(map(gguf.has, weights)):
            yield from _weights(gguf, f"mlp.experts.{ours}", tuple(weights))
        if all(map(gguf.has, biases)):
            count, rows = stack_shape(gguf, biases, 2)
            yield f"mlp.experts.{ours}_bias", Alternating(tuple(biases), (count, rows * len(biases)))


def _weights(gguf: GGUF, ours: str, names: tuple[str, ...]) -> Iterator[tuple[str, Source]]:
    count, rows, columns = stack_shape(gguf, names, 3)
    rows *= len(names)
    if all(gguf.kind(name) == "MXFP4" for name in names):
        yield f"{ours}{BLOCKS}", Packed(names, (count, rows, columns // GROUP, BYTES), slice(1, None))
        yield f"{ours}{EXPONENTS}", Packed(names, (count, rows, columns // GROUP), slice(0, 1))
    else:
        yield ours, Alternating(names, (count, columns, rows))


@dataclass(frozen=True)
class Alternating:
    """Stacks [experts, rows, columns] as one, [experts, columns, all rows], in which their rows alternate.

    Of biases, [experts, rows], it is [experts, all rows]. One expert's matrices are in memory at a time.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape)

    def blocks(self, gguf: GGUF) -> Iterator[npt.NDArray[Any]]:
        for at in range(self.shape[0]):
            yield stored(_alternated([np.concatenate(list(gguf.rows(name, expert=at))) for name in self.names]).T)


@dataclass(frozen=True)
class Packed:
    """Bytes of MXFP4 blocks of stacks whose rows alternate: exponents, or elements in the order of Hugging Face."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    part: slice  # of a block's bytes

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, "U8")

    def blocks(self, gguf: GGUF) -> Iterator[npt.NDArray[Any]]:
        for at in range(self.shape[0]):
            found = [gguf.blocks(name, at) for name in self.names]
            for name, rows in zip(self.names, found, strict=True):
                if (rows[:, :: BYTES + 1] > LARGEST_EXPONENT).any():
                    raise gguf.not_finite(name)
            # Exponents are a seventeenth of what is mapped, so parts are taken before rows are copied.
            each = _alternated([rows.reshape(len(rows), -1, BYTES + 1)[..., self.part] for rows in found])
            yield _paired(each) if each.shape[-1] == BYTES else each


def _alternated(matrices: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the first rows of all matrices, then the second ones, and so on."""
    return np.stack(matrices, axis=1).reshape(-1, *matrices[0].shape[1:])


def _paired(halves: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return bytes of elements 2i and 2i + 1, of bytes of elements i and i + 16; the earlier is in the lower half."""
    elements = np.concatenate([halves & 15, halves >> 4], axis=-1)
    pairs: npt.NDArray[np.uint8] = elements[..., ::2] | elements[..., 1::2] << 4
    return pairs
