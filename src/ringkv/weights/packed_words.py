"""packed_words: integers of 4 or 8 bits in words of 32, the first in a word's lowest bits.

AWQ, GPTQ and compressed-tensors pack outputs or inputs of a matrix so; see their files.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

WORD = 32  # bits
BITS = (4, 8)


def words(bits: int, integers: int) -> int:
    """Return how many words so many integers take."""
    return -(-integers * bits // WORD)


def unpacked_columns(found: Tensor, bits: int) -> Tensor:
    """Return uint8 [n, w * 32 / bits] of words int32 [n, w] that have columns."""
    pairs = found.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # sets strides of single words, too
    return pairs if bits == 8 else torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)


def unpacked_rows(found: Tensor, bits: int, places: Sequence[int] = range(WORD)) -> Tensor:
    """Return uint8 [w * 32 / bits, m] of words int32 [w, m] that have rows.

    places: where in a word each row is, counted in integers from its lowest bits.
    """
    each = WORD // bits
    rows = torch.empty(len(found), each, found.shape[1], dtype=torch.uint8)
    contiguous = found.contiguous()
    for row, place in zip(rows.unbind(1), places, strict=False):
        row.copy_((contiguous >> bits * place).bitwise_and_((1 << bits) - 1))
    return rows.flatten(0, 1)


def covering(span: range, bits: int) -> tuple[range, slice]:
    """Return the words that have these integers, and where the integers are in the unpacked words."""
    each = WORD // bits
    first = span.start // each
    skipped = span.start - first * each
    return range(first, -(-span.stop // each)), slice(skipped, skipped + len(span))
