"""read_ahead: slots in files, whose selected pages the system reads before attention needs them.

L layers, R rows, H key-value heads, C entries per row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.kernels.library import is_native, register


def read_ahead(planes: Sequence[Tensor]) -> Tensor | None:
    """Have steps read ahead the pages of planes [L, R, H, C, ...] in files. Call it once, for all of their life.

    Returns int32 [L, R, H]: how many pages of each head, keys or values, were not in memory when steps selected them.
    Steps add to it. None if there is no C++ kernel, which alone knows.
    """
    if not is_native("read_ahead"):
        return None
    fetched = torch.zeros(planes[0].shape[:3], dtype=torch.int32)
    torch.ops.ringkv.read_ahead(planes, fetched)
    return fetched


def reference(planes: Sequence[Tensor], fetched: Tensor) -> None:
    """Do nothing: the system reads what is touched."""


register("read_ahead", reference)
