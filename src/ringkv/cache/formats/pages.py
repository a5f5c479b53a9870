"""pages: plain or int8 vectors of which a step reads some pages, and may estimate the others.

`PagesBody` has their digests and pins, and mean values for estimates.
`RecallBody` has those that are on a GPU, if all are in its host's memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ringkv.cache.formats.int8 import INT8_FORMAT
from ringkv.cache.formats.plain import PLAIN
from ringkv.kernels.decode_attend_pages import decode_attend_pages
from ringkv.kernels.decode_attend_pages_int8 import decode_attend_pages_int8
from ringkv.kernels.decode_attend_recall import decode_attend_recall, prefetch_recall
from ringkv.kernels.partial import Partial
from ringkv.kernels.prefetch_pages import prefetch_pages

_BESIDE = (0, 2), (0, 2), (0,)
_RESIDENTS = (0, 2), (0, 2), (0, 2), (0, 2), (0, 2), (0,)
_MEANS = (0,)


def _estimating(attend: Callable[..., Partial], q: Tensor, k: Tensor | None, v: Tensor | None, *others: Any) -> Partial:
    """Attend to the pages that are read, and to others by an estimate."""
    *stored, means, digests, pins, counts, slot, entry, live, scale = others
    return attend(q, k, v, *stored, digests, pins, counts, slot, entry, live, scale, means)


def _prefetch(tensors: int, q: Tensor, *others: Any) -> Tensor:
    """Prefetch from planes of so many tensors each."""
    return prefetch_pages(q, others[: 2 * tensors], *others[-6:])


PAGES = PLAIN._replace(beside=_BESIDE, attend=decode_attend_pages, prefetch=partial(_prefetch, PLAIN.tensors))
PAGES_INT8 = INT8_FORMAT._replace(
    beside=(*INT8_FORMAT.beside, *_BESIDE),
    attend=decode_attend_pages_int8,
    prefetch=partial(_prefetch, INT8_FORMAT.tensors),
)
PAGES_ESTIMATED, PAGES_INT8_ESTIMATED = (
    one._replace(
        beside=(*one.beside[: -len(_BESIDE)], _MEANS, *_BESIDE),
        attend=partial(_estimating, one.attend),
    )
    for one in (PAGES, PAGES_INT8)
)
RECALLED = PLAIN._replace(beside=(*_BESIDE, *_RESIDENTS), attend=decode_attend_recall, prefetch=prefetch_recall)
