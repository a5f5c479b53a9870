"""plain: elements of the engine's dtype."""

from collections.abc import Sequence

from torch import Tensor

from ringkv.cache.formats.storage import Allocate, StorageFormat
from ringkv.kernels.decode_attend import decode_attend, read_attend
from ringkv.kernels.partial import Partial
from ringkv.kernels.take_rows import take_rows


def _allocate(shape: Sequence[int], allocate: Allocate) -> tuple[Tensor, ...]:
    return (allocate(shape),)


def _take(staged: Tensor, row: int, index: Tensor, target: Sequence[Tensor], *_: object) -> None:
    (vectors,) = target
    take_rows(staged, row, index, vectors)


def _attend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> Partial:
    if k is None or v is None:
        return read_attend(q, keys, values, slot, live, scale)
    return decode_attend(q, k, v, keys, values, slot, entry, live, scale)


PLAIN = StorageFormat(1, False, _allocate, _take, _attend)
