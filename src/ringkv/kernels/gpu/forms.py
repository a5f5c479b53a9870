"""FORMS: the formats of encoded entries, as the Triton kernels process them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ringkv.kernels.gpu.attend_bytes import attend_bytes
from ringkv.kernels.gpu.attend_nibbles import attend_nibbles
from ringkv.kernels.gpu.elements import E4M3_UNIT, e4m3_high, e4m3_low, int8_high, int8_low
from ringkv.kernels.gpu.encode_vector import store_fp8, store_int4, store_int8, store_turbo4
from ringkv.kernels.gpu.hadamard import stages
from ringkv.kernels.gpu.key_scores import codebook_scores, uniform_scores

WORD = torch.int16


@dataclass(frozen=True)
class Form:
    """How the kernels process a format.

    store_key, store_value: encode a vector and store it as elements of dtype `stored`. attend: attends to one split.
    per_word: elements of the 16-bit words in which it loads them. key_range, value_range: dtypes in which it loads
    their scales. pipeline: stages of the pipeline that loads them. is_signed: keys have random signs.
    """

    store_key: Any
    store_value: Any
    stored: torch.dtype
    attend: Any
    constants: Mapping[str, Any]
    per_word: int
    key_range: torch.dtype
    value_range: torch.dtype
    pipeline: int
    is_rotated: bool = True
    is_signed: bool = False

    def stages(self, width: int) -> int:
        """Return the stages of the rotation of its vectors."""
        return stages(width) if self.is_rotated else 0


INT8 = {"LOW": int8_low, "HIGH": int8_high, "UNIT": 1.0}
E4M3 = {"LOW": e4m3_low, "HIGH": e4m3_high, "UNIT": E4M3_UNIT}
FLOAT, HALF, TWO_HALVES = torch.float32, torch.float16, torch.int32
UNIFORM, CODEBOOK = {"SCORES": uniform_scores}, {"SCORES": codebook_scores}
FORMS = {
    "int8": Form(store_int8, store_int8, torch.int8, attend_bytes, INT8, 2, FLOAT, FLOAT, 2),
    "fp8": Form(store_fp8, store_fp8, torch.uint8, attend_bytes, E4M3, 2, HALF, HALF, 2, is_rotated=False),
    "int4": Form(store_int4, store_int4, WORD, attend_nibbles, UNIFORM, 4, TWO_HALVES, TWO_HALVES, 3),
    "turbo4": Form(store_turbo4, store_int4, WORD, attend_nibbles, CODEBOOK, 4, HALF, TWO_HALVES, 3, is_signed=True),
}
