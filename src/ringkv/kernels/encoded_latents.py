"""Decode attention over encoded latents, with scales per token and group of GROUP elements.

Groups begin at the first element. If latents have whole groups, the rotated key is the last group, alone. DeepSeek's
own fp8 cache has the same groups, but rotated keys in 16 bits, which would take 10% more bytes in 8 bits and 30% more
in 4 bits.

The center of a slot is subtracted before rounding, as from keys of heads, because channels of latents have means. A
latent is a value too, so the center is added to the weighted sum again.

The kernels widen a block of latents to 16 bits once for many heads. With few cores the products take longer than
reading memory, so attention takes as long as over plain latents.

B rows of a step, S slots, G query heads, C entries per slot, D elements of an entry.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.base.cache_spec import LATENT_GROUP as GROUP
from ringkv.kernels.decode_attend import read_attend, write
from ringkv.kernels.decode_attend_fp8 import FP8
from ringkv.kernels.decode_attend_int4 import INT4
from ringkv.kernels.decode_attend_int8 import INT8
from ringkv.kernels.encoded_attend import Encoding, with_first
from ringkv.kernels.latent_attend import decode_attend_latent
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.packing import fits_tiles
from ringkv.kernels.partial import Partial, empty_results


def grouped(encoding: Encoding, packed: int) -> Encoding:
    """Return the encoding of vectors [..., D] by groups: scales [..., groups] or [..., groups, n].

    packed: elements in a byte.
    """

    def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
        elements, scales = zip(*map(encoding.encode, vectors.split(GROUP, -1)), strict=True)
        return torch.cat(elements, -1), torch.stack(scales, vectors.dim() - 1)

    def decode(elements: Tensor, scales: Tensor) -> Tensor:
        groups = zip(elements.split(GROUP // packed, -1), scales.unbind(elements.dim() - 1), strict=True)
        return torch.cat([encoding.decode(*group) for group in groups], -1)

    return Encoding(encode, decode)


ENCODINGS: Mapping[str, Encoding] = {"int8": grouped(INT8, 1), "fp8": grouped(FP8, 1), "int4": grouped(INT4, 2)}


def attend_latents(name: str, q: Tensor, k: Tensor, *others: Tensor | float) -> Partial:
    """Do what `decode_attend_latent` does, in the format `name`; latents and scales are changed in place.

    others: latents [S, 1, C, bytes]; scales [S, 1, C, groups] or [S, 1, C, groups, n]; centers as `EncodedPlanes` has;
    slot, entry, live int32 [B]; scale.
    """
    operator = f"decode_attend_latent_{name}_tiles"
    attend = getattr(torch.ops.ringkv, operator if fits_tiles(q, operator) else f"decode_attend_latent_{name}")
    return Partial(*attend(q, k, *others))


def reference(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    latents: Tensor,
    scales: Tensor,
    centers: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Implement `attend_latents` slot by slot: decode its live entries to the dtype of q, and attend to them."""
    center, first = centers.split([k.shape[-1], centers.shape[-1] - k.shape[-1]], -1)
    write((latents, scales), encoding.encode(k - center[slot.long()]), slot, entry, live)
    found = []
    for row, (at, count) in enumerate(zip(slot.tolist(), live.tolist(), strict=True)):
        own = slice(at, at + 1), slice(None), slice(max(1, count))
        decoded = with_first(encoding.decode(latents[own], scales[own]), first[at : at + 1]) + center[at, :, None]
        plane, one = decoded.to(q.dtype), slice(row, row + 1)
        found.append(read_attend(q[one], plane, plane, torch.zeros_like(slot[one]), live[one], scale))
    return torch.cat([one.out for one in found]), torch.cat([one.lse for one in found])


def _cuda(format: str, q: Tensor, k: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    from ringkv.kernels.gpu import encoded_latents as gpu  # loads Triton
    from ringkv.kernels.gpu.latent_forms import LATENT_FORMS

    count = len(gpu.LatentPlanes._fields)
    return gpu.decode_attend(LATENT_FORMS[format], q, k, gpu.LatentPlanes(*others[:count]), *others[count:])


ATTEND: Mapping[str, Callable[..., Partial]] = {
    "plain": decode_attend_latent,
    **{name: partial(attend_latents, name) for name in ENCODINGS},
}
"""Decode attention over latents of slots, by their format."""
for _format, _encoding in ENCODINGS.items():
    for _name in (f"decode_attend_latent_{_format}", f"decode_attend_latent_{_format}_tiles"):
        LIBRARY.impl(_name, partial(reference, _encoding), "CompositeExplicitAutograd")
        register_fake(f"ringkv::{_name}", empty_results, lib=LIBRARY)
    if find_spec("triton"):
        LIBRARY.impl(f"decode_attend_latent_{_format}", partial(_cuda, _format), "CUDA")
