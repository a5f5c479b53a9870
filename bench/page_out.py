"""page_out: take the entries of slots in files out of memory, as if nothing had read them since they were written."""

import ctypes
import mmap
import os

from torch import Tensor

from ringkv.cache.pages_body import PagesBody
from ringkv.engine.engine import LocalEngine

_SYNC, _PAGE_OUT = 4, 21  # MS_SYNC and MADV_PAGEOUT of Linux


def page_out(engine: LocalEngine) -> None:
    """Write all entries to their files and drop them from memory. Raises OSError if the system keeps more than 5%."""
    for body in engine.batch.bodies:
        if isinstance(body, PagesBody) and body.file_bytes:
            for plane in body.planes:
                _drop(plane)


def _drop(plane: Tensor) -> None:
    system = ctypes.CDLL(None, use_errno=True)
    at, size = ctypes.c_void_p(plane.data_ptr()), ctypes.c_size_t(plane.nbytes)
    for call, flag in ((system.msync, _SYNC), (system.madvise, _PAGE_OUT)):
        if call(at, size, flag):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    pages = -(-plane.nbytes // mmap.PAGESIZE)
    held = (ctypes.c_ubyte * pages)()
    if system.mincore(at, size, held) or sum(one & 1 for one in held) > pages / 20:
        raise OSError("the system keeps files in memory that were to be paged out")
