# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Hadamard rotations in Triton; `kernels.hadamard` has the same in torch."""

import triton
import triton.language as tl


@triton.jit
def rotate(vectors, SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Multiply float32 [SIZE] by a Hadamard matrix, which is its own inverse, per block of 2**STAGES elements.

    Sums have the order of the torch function, so the elements are the same bit for bit.
    """
    for stage in tl.static_range(STAGES):
        pairs = tl.permute(tl.reshape(vectors, (SIZE // (2 << stage), 2, 1 << stage)), (0, 2, 1))
        first, second = tl.split(pairs)
        pairs = tl.join(first + second, first - second)
        vectors = tl.reshape(tl.permute(pairs, (0, 2, 1)), (SIZE,))
    return vectors * (2.0 ** (-STAGES / 2))


def stages(width: int) -> int:
    """Return log2 of the elements of a block in a vector of so many: the largest power of two that divides them."""
    return (width & -width).bit_length() - 1
