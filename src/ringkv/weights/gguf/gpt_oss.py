"""Gpt-oss' settings and experts, whose gates and ups a GGUF has as two stacks.

Hugging Face layout has one stack [experts, in, out], in which rows of gates and ups alternate. Stacks in MXFP4 remain
in MXFP4: blocks [experts, out, in / 32, 16] and exponents [experts, out, in / 32].
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ringkv.weights.gguf.fields import grouped
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.groups import halves, in_pairs
from ringkv.weights.gguf.rope import rope_scaling
from ringkv.weights.gguf.source import STACKS, Array, Merged, stack_shape, stored
from ringkv.weights.safetensors_writer import TensorSpec
from ringkv.weights.shapes import BLOCKS, BYTES, EXPONENTS

LARGEST_EXPONENT = 252  # 6, the largest element, times 2 ** (252 - 127) is finite in float32
GROUP = 2 * BYTES
UNSCALED = {"rope_type": "default"}  # a config.json without rope_scaling has YaRN


def gpt_oss(gguf: GGUF) -> dict[str, Any]:
    """Return the rotary embedding, and how experts are stored.

    YaRN's range of pairs is not rounded to whole ones, which no metadata key says.
    """
    scaling = rope_scaling(gguf, grouped(gguf)["head_dim"])
    packed = any(gguf.kind(name) == "MXFP4" for name in gguf.names)
    return {
        "rope_scaling": {**scaling, "truncate": False} if scaling else UNSCALED,
        **({"quantization_config": {"quant_method": "mxfp4"}} if packed else {}),
    }


def experts(gguf: GGUF, layer: str) -> Iterator[tuple[str, Merged]]:
    """Yield the tensors of a layer's experts. Raises BadWeights if gates and ups differ in shape."""
    for ours, stacks in STACKS.items():
        weights, biases = ([f"{layer}{stack}.{end}" for stack in stacks] for end in ("weight", "bias"))
        if all(map(gguf.has, weights)):
            yield from _weights(gguf, f"mlp.experts.{ours}", weights)
        if all(map(gguf.has, biases)):
            count, rows = stack_shape(gguf, biases, 2)
            yield f"mlp.experts.{ours}_bias", _alternating(biases, (count, rows * len(biases)))


def _weights(gguf: GGUF, ours: str, names: Sequence[str]) -> Iterator[tuple[str, Merged]]:
    count, rows, columns = stack_shape(gguf, names, 3)
    rows *= len(names)
    if all(gguf.kind(name) == "MXFP4" for name in names):
        yield f"{ours}{BLOCKS}", _packed(names, (count, rows, columns // GROUP, BYTES), slice(1, None))
        yield f"{ours}{EXPONENTS}", _packed(names, (count, rows, columns // GROUP), slice(0, 1))
    else:
        yield ours, _alternating(names, (count, columns, rows))


def _alternating(names: Sequence[str], shape: tuple[int, ...]) -> Merged:
    """Merge stacks [experts, rows, columns] to one, [experts, columns, all rows], in which their rows alternate.

    Of biases, [experts, rows], it is [experts, all rows]. One expert's matrices are in memory at a time.
    """

    def blocks(gguf: GGUF) -> Iterator[Array]:
        for expert in range(shape[0]):
            yield stored(_alternated([gguf.tensor(name, expert) for name in names]).T)

    return Merged(TensorSpec(shape), blocks)


def _packed(names: Sequence[str], shape: tuple[int, ...], part: slice) -> Merged:
    """Merge MXFP4 blocks of stacks whose rows alternate: exponents, or elements in the order of Hugging Face.

    part: of a block's bytes. A GGUF has elements i and i + 16 in a byte, Hugging Face 2i and 2i + 1.
    """

    def blocks(gguf: GGUF) -> Iterator[Array]:
        for expert in range(shape[0]):
            stacks = {name: gguf.data(name, expert) for name in names}
            for name, rows in stacks.items():
                if (rows[:, :: BYTES + 1] > LARGEST_EXPONENT).any():
                    raise gguf.not_finite(name)
            # Exponents are a seventeenth of what is mapped, so parts are taken before rows are copied.
            rows = _alternated([rows.reshape(len(rows), -1, BYTES + 1)[..., part] for rows in stacks.values()])
            yield in_pairs(halves(rows)) if rows.shape[-1] == BYTES else rows

    return Merged(TensorSpec(shape, "U8"), blocks)


def _alternated(matrices: list[Array]) -> Array:
    """Return the first rows of all matrices, then the second ones, and so on."""
    return np.stack(matrices, axis=1).reshape(-1, *matrices[0].shape[1:])
