"""FORMS: the encodings of entries, as the Triton kernels process them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels.gpu.codes import BYTES, NIBBLES, Code
from ringkv.kernels.gpu.complete_page import decode_bytes, decode_nibbles
from ringkv.kernels.gpu.elements import by_nibble, in_order
from ringkv.kernels.gpu.encode_vector import store_int4, store_int8
from ringkv.kernels.gpu.latent_tiles import int4_tile, int8_tile

WORD = torch.int16


@dataclass(frozen=True)
class Form:
    """How the kernels process an encoding.

    store: encodes a vector and stores it as elements of dtype `stored`. ranges: the dtype in which they load what a
    vector has beside its elements. code: of the 16-bit words in which they load those. decode: decodes keys for
    digests. tile, order: load and decode entries of latents, whose elements are in this order. pipeline: stages of the
    pipeline that loads words.
    """

    store: Any
    stored: torch.dtype
    ranges: torch.dtype
    code: Code
    decode: Any
    tile: Any
    order: Any
    pipeline: int


FORMS: Mapping[PlaneFormat, Form] = {
    "int8": Form(store_int8, torch.int8, torch.float32, BYTES, decode_bytes, int8_tile, in_order, 2),
    "int4": Form(store_int4, WORD, torch.int32, NIBBLES, decode_nibbles, int4_tile, by_nibble, 3),
}
