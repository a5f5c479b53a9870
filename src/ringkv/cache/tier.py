"""tier: memory that is a file of a local disk, for entries that most steps do not read."""

import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor

from ringkv.base.errors import InvalidRequest
from ringkv.cache.formats.storage import Allocate


def on_disk(folder: Path, like: Tensor) -> Allocate:
    """Return a function that makes tensors of zeros in files of their own, by default in the dtype of `like`.

    A file has all of its space from the start and no name, so that nothing is left of it when the process ends. Its
    pages are cached by the operating system, which takes them back if memory is short.
    """

    def allocate(shape: Sequence[int], dtype: torch.dtype = like.dtype) -> Tensor:
        return torch.frombuffer(_mapped(folder, math.prod(shape) * dtype.itemsize), dtype=dtype).view(*shape)

    return allocate


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
