"""Attention over latents: one plane holds keys, whose elements are values too (arXiv 2405.04434).

N rows of a pass, B rows of a step, G query heads, S slots or staged entries, C entries per slot, D elements of an
entry, P lanes, W window. The results have D elements; a model uses those that are values.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.kernels.attended import Attended, empty_results
from ringkv.kernels.library import grouped, register
from ringkv.kernels.prefill_attend import Piece, Staged, attend_segments, prefill_attend


class StagedLatents(NamedTuple):
    """The staging of latents, and the segments of a pass; see `Staged`. latents [1, S, D], window [P, 1, G, W, D]."""

    latents: Tensor
    window: Tensor
    segments: Tensor

    @property
    def twice(self) -> Staged:
        """The latents as keys and as values."""
        return Staged(self.latents, *self)


def prefill_attend_latent(q: Tensor, k: Tensor, staged: StagedLatents, scale: float) -> Attended:
    """Stage k [N, 1, D] and attend causally with q [N, 1, G, D] to latents; see `prefill_attend`."""
    return Attended(*torch.ops.ringkv.prefill_attend_latent(q, k, *staged, scale))


def _prefill(q: Tensor, k: Tensor, staged: StagedLatents, scale: float) -> tuple[Tensor, Tensor]:
    return prefill_attend(q, k, k, staged.twice, scale)


def _prefill_cuda(q: Tensor, k: Tensor, staged: StagedLatents, scale: float) -> tuple[Tensor, Tensor]:
    from ringkv.kernels.gpu import latent_attend as gpu  # loads Triton

    def attend(piece: Piece) -> Attended:
        return Attended(*gpu.prefill_latent(piece.q, piece.seen_k[0], piece.start, scale))

    return attend_segments(attend, q, k, k, staged.twice)


register("prefill_attend_latent", grouped(_prefill), empty_results, grouped(_prefill_cuda))
