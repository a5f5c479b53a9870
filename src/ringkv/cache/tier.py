"""tier: memory for entries that most steps do not read: files of a local disk, or the host's memory beside a GPU."""

import logging
import math
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.kernels.slots import Allocate
from ringkv.machine.folders import IN_MEMORY, file_system

log = logging.getLogger(__name__)


def allocate_tier(config: EngineConfig, like: Tensor) -> Allocate | None:
    """Return what allocates the entries of slots in pages, or None if they are with all else."""
    pages = config.slot_format.pages
    if pages and pages.resident:
        if like.is_cuda and find_spec("triton") is None:
            raise InvalidRequest("kv_tier memory on a GPU needs Triton; install it, or leave kv_tier out", "kv_tier")
        return pinned(like)
    if config.kv_tier is None:
        return None
    if (system := file_system(config.kv_tier)) in IN_MEMORY:
        text = "kv_tier %s is in memory (%s), which the plan does not count; choose a directory of a disk"
        log.warning(text, config.kv_tier, system)
    return on_disk(config.kv_tier, like)


def on_disk(folder: Path, like: Tensor) -> Allocate:
    """Return a function that makes tensors of zeros in files of their own, by default in the dtype of `like`.

    A file has all of its space from the start and no name, so that nothing is left of it when the process ends. Its
    pages are cached by the operating system, which takes them back if memory is short.
    """

    return _in(partial(_mapped, folder), like)


def pinned(like: Tensor) -> Allocate:
    """Return a function that makes tensors of zeros that the host and the GPU of `like` address.

    torch's own pinned memory would round each of them up to a power of two. Without a GPU it is plain memory.
    """

    return _in(lambda size: _Pinned(-1, size, flags=mmap.MAP_PRIVATE), like) if like.is_cuda else like.new_zeros


def _in(memory: Callable[[int], mmap.mmap], like: Tensor) -> Allocate:
    """Return a function that makes tensors in memory of so many bytes."""

    def allocate(shape: Sequence[int], dtype: torch.dtype = like.dtype) -> Tensor:
        return torch.frombuffer(memory(math.prod(shape) * dtype.itemsize), dtype=dtype).view(*shape)

    return allocate


class _Pinned(mmap.mmap):
    """Memory that CUDA keeps in place until nothing refers to it. Raises InvalidRequest, naming `kv_tier`."""

    def __init__(self, _: int, size: int, flags: int) -> None:
        runtime: Any = torch.cuda.cudart()
        self._address, self._unpin = torch.frombuffer(self, dtype=torch.uint8).data_ptr(), _nothing
        if error := int(runtime.cudaHostRegister(self._address, size, _DEFAULT)):
            raise InvalidRequest(
                f"kv_tier memory cannot pin {size:,} bytes of the host's memory (CUDA error {error}); choose fewer "
                "slots, or a lower prompt_tokens, or leave kv_tier out",
                "kv_tier",
            )
        self._unpin = runtime.cudaHostUnregister

    def __del__(self) -> None:
        self._unpin(self._address)


def _nothing(address: int) -> None:
    """Unpin nothing."""


_DEFAULT = 0  # with unified addressing: the GPU has the host's address, in all contexts


def _mapped(folder: Path, size: int) -> mmap.mmap:
    """Return so many bytes of a new file. Raises InvalidRequest, naming `kv_tier`, if the folder has no room."""
    try:
        with TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise InvalidRequest(
            f"kv_tier {folder} cannot hold {size:,} bytes ({error.strerror}); choose a directory of a disk with more "
            "space, or fewer slots, or memory",
            "kv_tier",
        ) from None
