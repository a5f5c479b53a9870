"""page_out: drop the entries of slots in files from memory, at least 80% of them, so that a step reads the disk."""

import ctypes
import mmap
import os
from collections.abc import Callable

from torch import Tensor

from ringkv.cache.pages_body import PagesBody
from ringkv.engine.engine import LocalEngine

_SYNC, _PAGE_OUT = 4, 21  # MS_SYNC and MADV_PAGEOUT of Linux
_MOST = 0.2  # of the pages may stay in memory
_TRIES = 8


def page_out(engine: LocalEngine) -> None:
    """Write all entries to their files and drop them from memory. Raises OSError if the system keeps too many."""
    for body in engine.batch.bodies:
        if isinstance(body, PagesBody) and body.file_bytes:
            for plane in body.planes:
                _drop(plane)


def _drop(plane: Tensor) -> None:
    system = ctypes.CDLL(None, use_errno=True)
    place = ctypes.c_void_p(plane.data_ptr()), ctypes.c_size_t(plane.nbytes)
    _checked(system.msync, *place, _SYNC)
    held = (ctypes.c_ubyte * -(-plane.nbytes // mmap.PAGESIZE))()
    for _ in range(_TRIES):
        _checked(system.madvise, *place, _PAGE_OUT)
        _checked(system.mincore, *place, held)
        share = sum(one & 1 for one in held) / len(held)
        if share <= _MOST:
            return
    raise OSError(f"the system keeps {share:.0%} of a file in memory that was to be paged out")


def _checked(call: Callable[..., int], *arguments: object) -> None:
    if call(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
