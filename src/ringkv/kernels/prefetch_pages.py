"""prefetch_pages: pages that a layer will probably read are fetched while the layer before it computes.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, P pages of a slot, D head_dim. Source:
ArkVale (NeurIPS 2024), section 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.kernels.decode_attend import needs_reference
from ringkv.kernels.library import LIBRARY


def prefetch_pages(
    q: Tensor,
    planes: Sequence[Tensor],
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    slot: Tensor,
    live: Tensor,
    scale: float,
) -> Tensor:
    """Have the system read what `decode_attend_pages` would select of slots in files for queries q [B, H, G, D].

    planes: all that files hold of slots, [S, H, C, ...] each. The other arguments are those of `decode_attend_pages`.
    It does not wait. `read_ahead` counts. Returns int32 [B, H], how many pages of each head were selected; 0 without a
    C++ kernel, which alone fetches.
    """
    if needs_reference(q, "prefetch_pages"):
        return reference(q, planes, digests, pins, counts, slot, live, scale)
    selected: Tensor = torch.ops.ringkv.prefetch_pages(q, planes, digests, pins, counts, slot, live, scale)
    return selected


def reference(q: Tensor, planes: Sequence[Tensor], *_: object) -> Tensor:
    """Do nothing: the system reads what is touched."""
    return q.new_zeros(q.shape[:2], dtype=torch.int32)


LIBRARY.impl("prefetch_pages", reference, "CompositeExplicitAutograd")
