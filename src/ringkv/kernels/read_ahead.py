"""read_ahead: planes of slots that are in files, whose selected pages the system reads before attention needs them.

L layers, R rows, H key-value heads, C entries per row.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import LIBRARY


def read_ahead(plane: Tensor) -> Tensor:
    """Have steps read ahead the pages of a plane [L, R, H, C, ...] in a file. Call it once, for all of its life.

    Returns int32 [L, R, H]: how many pages of each head were not in memory when steps selected them. Steps add to it.
    """
    recalled = torch.zeros(plane.shape[:3], dtype=torch.int32)
    torch.ops.ringkv.read_ahead(plane, recalled)
    return recalled


def reference(plane: Tensor, recalled: Tensor) -> None:
    """Do nothing: torch does not know what is in memory, and the system reads what is touched."""


LIBRARY.impl("read_ahead", reference, "CompositeExplicitAutograd")
