"""keep_queries: a step's queries, kept beside the slots that they attend to.

B rows of a step, S slots, N queries that a slot keeps, H key-value heads, G query heads each, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import register


def keep_queries(q: Tensor, queries: Tensor, slot: Tensor, entry: Tensor, live: Tensor) -> None:
    """Write q [B, H, G, D] to queries [S, N + 1, H, G, D], in place: at `entry` modulo N of each row's slot.

    slot, entry, live int32 [B]. Rows with live 0 belong to no slot. They write to the last row, which nobody reads.
    """
    torch.ops.ringkv.keep_queries(q, queries, slot, entry, live)


def reference(q: Tensor, queries: Tensor, slot: Tensor, entry: Tensor, live: Tensor) -> None:
    """Implement `keep_queries` in plain torch, without a host sync."""
    kept = queries.shape[1] - 1
    queries[slot.long(), torch.where(live > 0, entry % kept, kept).long()] = q


register("keep_queries", reference, lambda *_: None)
