"""Decode attention over encoded keys and values, with a scale per token and key-value head.

A center per slot and head is subtracted from keys, as in SageAttention (arXiv 2410.02367, section 4.2): it adds the
same to all scores of a query, so the softmax does not change.

The keys of the first entries may be beside the center, exactly. Those tokens get most of the attention (StreamingLLM,
arXiv 2309.17453, section 3.1), so an error of their scores costs the most.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, C entries per slot, D head_dim.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.partial import Partial

NO_KEY = float("nan")  # an element of a first key that is not kept exactly


class Encoding(NamedTuple):
    """How a vector is stored.

    encode: vectors [..., D] -> elements [..., bytes] and scales [...], or [..., n] if there are several per vector.
    decode: its inverse, float32 [..., D].
    """

    encode: Callable[[Tensor], tuple[Tensor, Tensor]]
    decode: Callable[[Tensor, Tensor], Tensor]


class EncodedPlanes(NamedTuple):
    """The tensors of slots, in the order of operators' arguments. All but the centers change in place.

    centers: the center, which is subtracted from every key, and the first E keys minus the center. One that is not kept
    so is NO_KEY.
    """

    keys: Tensor  # [S, H, C, bytes]
    key_scales: Tensor  # [S, H, C] or [S, H, C, n]
    values: Tensor
    value_scales: Tensor
    centers: Tensor  # float32 [S, H, D + E D]


def encoded_attend(name: str, q: Tensor, k: Tensor | None, v: Tensor | None, *others: Tensor | float) -> Partial:
    """Do what `decode_attend` does with the operator `name`.

    others: the tensors of `EncodedPlanes`; slot, entry, live int32 [B]; scale. k and v are None if another layer has
    written them. Nothing is written then.
    """
    return Partial(*plain.operator(name, q)(q, k, v, *others))


def reference(
    encodings: tuple[Encoding, Encoding],
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    planes: EncodedPlanes,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Implement `encoded_attend` in plain torch: write, then attend to the decoded slots.

    encodings: of keys, and of values.
    """
    if k is not None and v is not None:
        write(encodings, k, v, planes, slot, entry, live)
    visible = torch.arange(planes.keys.shape[2], device=q.device) < live[:, None]
    return plain.attend(q, *decoded(encodings, planes, slot.long()), visible[:, None, None], scale)


def write(
    encodings: tuple[Encoding, Encoding],
    k: Tensor,
    v: Tensor,
    planes: EncodedPlanes,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
) -> None:
    """Encode new keys and values [B, H, D], and write them to their entries."""
    of_keys, of_values = encodings
    center = planes.centers[slot.long(), :, : k.shape[-1]]
    plain.write((planes.keys, planes.key_scales), of_keys.encode(k - center), slot, entry, live)
    plain.write((planes.values, planes.value_scales), of_values.encode(v), slot, entry, live)


def decoded(encodings: tuple[Encoding, Encoding], planes: EncodedPlanes, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and values of slots int64 [B], float32 [B, H, C, D]."""
    of_keys, of_values = encodings
    keys, key_scales, values, value_scales, centers = (plane[rows] for plane in planes)
    found = of_keys.decode(keys, key_scales)
    center, first = centers.split([found.shape[-1], centers.shape[-1] - found.shape[-1]], -1)
    return with_first(found, first) + center[:, :, None], of_values.decode(values, value_scales)


def with_first(keys: Tensor, first: Tensor) -> Tensor:
    """Return keys [B, H, C, D] with those in `first` [B, H, E D] that are not NO_KEY."""
    exact = first.unflatten(-1, (-1, keys.shape[-1]))[:, :, : keys.shape[2]]
    known = torch.where(exact.isnan(), keys[:, :, : exact.shape[2]], exact)
    return torch.cat((known, keys[:, :, exact.shape[2] :]), 2)


def register(
    name: str, keys: Encoding, values: Encoding
) -> tuple[Callable[..., Partial], Callable[..., tuple[Tensor, Tensor]]]:
    """Register the reference of the operator `name`; return its `encoded_attend` and its reference."""
    own = partial(_with_planes, partial(reference, (keys, values)))
    plain.register(name, own)
    return partial(encoded_attend, name), own


def register_cuda(name: str, format: str) -> None:
    """Register the Triton kernels of a format for the operator `name`, if Triton is installed."""
    if find_spec("triton"):
        LIBRARY.impl(name, partial(_with_planes, partial(_cuda, format)), "CUDA")


def _with_planes(
    attend: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor | None, v: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor]:
    """Call an implementation with an operator's arguments."""
    count = len(EncodedPlanes._fields)
    return attend(q, k, v, EncodedPlanes(*others[:count]), *others[count:])


def _cuda(format: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    from ringkv.kernels.gpu import encoded_attend as gpu  # loads Triton
    from ringkv.kernels.gpu.forms import FORMS

    return gpu.decode_attend(FORMS[format], *arguments)
