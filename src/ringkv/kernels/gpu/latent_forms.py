"""LATENT_FORMS: the formats of encoded latents, as the Triton kernels process them."""

from dataclasses import dataclass
from typing import Any

from ringkv.kernels.gpu.encoded_latent_tiles import fp8_tile, int4_tile, int8_tile
from ringkv.kernels.gpu.forms import FORMS, Form
from ringkv.kernels.gpu.stored_order import by_nibble, in_order


@dataclass(frozen=True)
class LatentForm:
    """How the kernels process a format.

    form: that of a group, which is encoded as a head's key. tile: loads and decodes entries. order: of their elements.
    """

    form: Form
    tile: Any
    order: Any


LATENT_FORMS = {
    "int8": LatentForm(FORMS["int8"], int8_tile, in_order),
    "fp8": LatentForm(FORMS["fp8"], fp8_tile, in_order),
    "int4": LatentForm(FORMS["int4"], int4_tile, by_nibble),
}
