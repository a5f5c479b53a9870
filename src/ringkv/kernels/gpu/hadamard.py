# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Hadamard rotations in Triton; `kernels.hadamard` has the same in torch."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.kernels.gpu.elements import in_order


@triton.jit
def rotate(vectors, SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Multiply float32 [SIZE] by a Hadamard matrix, which is its own inverse, per block of 2**STAGES elements.

    Sums have the order of the torch function, so the elements are the same bit for bit.
    """
    for stage in tl.static_range(STAGES):
        vectors = _butterfly(vectors, SIZE, stage)
    return vectors * (2.0 ** (-STAGES / 2))


@triton.jit
def rotate_groups(vectors, is_whole, SIZE: tl.constexpr, WHOLE_STAGES: tl.constexpr, STAGES: tl.constexpr):
    """Do what `rotate` does, with blocks of 2**WHOLE_STAGES elements in whole groups, bool [SIZE]."""
    for stage in tl.static_range(WHOLE_STAGES):
        sums = _butterfly(vectors, SIZE, stage)
        vectors = sums if stage < STAGES else tl.where(is_whole, sums, vectors)
    return vectors * tl.where(is_whole, 2.0 ** (-WHOLE_STAGES / 2), 2.0 ** (-STAGES / 2))


@triton.jit
def _butterfly(vectors, SIZE: tl.constexpr, STAGE: tl.constexpr):
    pairs = tl.permute(tl.reshape(vectors, (SIZE // (2 << STAGE), 2, 1 << STAGE)), (0, 2, 1))
    first, second = tl.split(pairs)
    pairs = tl.join(first + second, first - second)
    return tl.reshape(tl.permute(pairs, (0, 2, 1)), (SIZE,))


def stages(width: int) -> int:
    """Return log2 of the elements of a block in a vector of so many: the largest power of two that divides them."""
    return (width & -width).bit_length() - 1


@dataclass(frozen=True)
class Rotation:
    """Groups of elements, each of which is rotated alone.

    whole: elements in whole groups, before the last group. stages, whole_stages: of the rotation of the last group, and
    of a whole one. order: see `elements`.
    """

    stages: int
    whole_stages: int
    whole: int = 0
    order: Any = in_order

    @classmethod
    def of_keys(cls, width: int) -> "Rotation":
        """Return that of a head's keys of so many elements, which are a single group."""
        return cls(stages(width), stages(width))

    @classmethod
    def of_latents(cls, order: Any, width: int) -> "Rotation":
        whole = (width - 1) // LATENT_GROUP * LATENT_GROUP
        last = stages(width - whole)
        return cls(last, stages(LATENT_GROUP) if whole else last, whole, order)


UNROTATED = Rotation(0, 0)
