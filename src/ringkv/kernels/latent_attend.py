"""Attention over latents: one plane holds keys, whose elements are values too (arXiv 2405.04434).

N rows of a pass, B rows of a step, G query heads, S slots or staged entries, C entries per slot, D elements of an
entry, P lanes, W window. The results have D elements; a model uses those that are values.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels import decode_attend as decode
from ringkv.kernels import prefill_attend as prefill
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.packing import fits_tiles
from ringkv.kernels.partial import Partial, empty_results


def decode_attend_latent(
    q: Tensor, k: Tensor, keys: Tensor, slot: Tensor, entry: Tensor, live: Tensor, scale: float
) -> Partial:
    """Write k [B, 1, D] and attend with q [B, 1, G, D] to latents [S, 1, C, D]; see `decode_attend`."""
    tiles = fits_tiles(q, "decode_attend_latent_tiles")
    attend = torch.ops.ringkv.decode_attend_latent_tiles if tiles else torch.ops.ringkv.decode_attend_latent
    return Partial(*attend(q, k, keys, slot, entry, live, scale))


def prefill_attend_latent(
    q: Tensor, k: Tensor, keys: Tensor, window: Tensor, segments: Tensor, scale: float
) -> Partial:
    """Stage k [N, 1, D] and attend causally with q [N, 1, G, D] to latents [1, S, D]; see `prefill_attend`."""
    return Partial(*torch.ops.ringkv.prefill_attend_latent(q, k, keys, window, segments, scale))


def _decode(
    q: Tensor, k: Tensor, keys: Tensor, slot: Tensor, entry: Tensor, live: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out, lse = decode.decode_attend(q, k, k, keys, keys, slot, entry, live, scale)
    return out, lse


def _decode_cuda(
    q: Tensor, k: Tensor, keys: Tensor, slot: Tensor, entry: Tensor, live: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    from ringkv.kernels.gpu import latent_attend as gpu  # loads Triton

    return gpu.decode_attend_latent(q, k, keys, slot, entry, live, scale)


def _prefill(
    q: Tensor, k: Tensor, keys: Tensor, window: Tensor, segments: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out, lse = prefill.prefill_attend(q, k, k, keys, keys, window, segments, scale)
    return out, lse


def _prefill_cuda(
    q: Tensor, k: Tensor, keys: Tensor, window: Tensor, segments: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    from ringkv.kernels.gpu import latent_attend as gpu  # loads Triton

    def attend(piece: prefill.Piece) -> Partial:
        return Partial(*gpu.prefill_latent(piece.q, piece.seen_k[0], piece.start, scale))

    return prefill.attend_segments(attend, q, k, k, keys, keys, window, segments)


for name in ("decode_attend_latent", "decode_attend_latent_tiles"):
    LIBRARY.impl(name, _decode, "CompositeExplicitAutograd")
LIBRARY.impl("prefill_attend_latent", _prefill, "CompositeExplicitAutograd")
if find_spec("triton"):
    LIBRARY.impl("decode_attend_latent", _decode_cuda, "CUDA")
    LIBRARY.impl("prefill_attend_latent", _prefill_cuda, "CUDA")
for name in ("decode_attend_latent", "decode_attend_latent_tiles", "prefill_attend_latent"):
    register_fake(f"ringkv::{name}", empty_results, lib=LIBRARY)
