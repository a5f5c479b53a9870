"""page_out: drop tensors in files from memory, at least 80% of each, so that what reads them reads the disk."""

import ctypes
import mmap
import os
from collections.abc import Callable

import torch
from torch import Tensor

_SYNC, _PAGE_OUT, _MAP = 4, 21, 22  # MS_SYNC, MADV_PAGEOUT and MADV_POPULATE_READ of Linux
_MOST = 0.2  # of the pages may stay in memory
_TRIES = 8


def page_out(plane: Tensor) -> None:
    """Write a tensor to its file and drop it from memory. Raises OSError if the system keeps too much."""
    place = _place(plane)
    _checked(_system().msync, *place, _SYNC)
    for _ in range(_TRIES):
        _checked(_system().madvise, *place, _PAGE_OUT)
        share = float(in_memory(plane).float().mean())
        if share <= _MOST:
            return
        _checked(_system().madvise, *place, _MAP)  # only what the process has mapped is dropped
    raise OSError(f"the system keeps {share:.0%} of a file in memory that was to be paged out")


def in_memory(plane: Tensor) -> Tensor:
    """Return which of the system's pages of a tensor in a file are in memory, bool [pages]."""
    held = torch.zeros(-(-plane.nbytes // mmap.PAGESIZE), dtype=torch.uint8)
    _checked(_system().mincore, *_place(plane), ctypes.c_void_p(held.data_ptr()))
    return (held & 1).bool()


def _place(plane: Tensor) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(plane.data_ptr()), ctypes.c_size_t(plane.nbytes)


def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(call: Callable[..., int], *arguments: object) -> None:
    if call(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
