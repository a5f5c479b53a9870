"""plain: elements of the engine's dtype."""

from collections.abc import Sequence

from torch import Tensor

from ringkv.cache.formats.storage import Allocate, StorageFormat
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.take_rows import take_rows


def _allocate(shape: Sequence[int], allocate: Allocate) -> tuple[Tensor, ...]:
    return (allocate(shape),)


def _take(staged: Tensor, row: int, index: Tensor, target: Sequence[Tensor], *_: object) -> None:
    (vectors,) = target
    take_rows(staged, row, index, vectors)


def _decode(tensors: Sequence[Tensor], centers: Tensor | None) -> Tensor:
    (vectors,) = tensors
    return vectors


PLAIN = StorageFormat(1, (), _allocate, _take, _decode, decode_attend)
