"""FORMATS: the formats of encoded entries that have a Triton kernel; for tests."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ringkv.kernels import decode_attend_fp8 as fp8
from ringkv.kernels import decode_attend_int4 as int4
from ringkv.kernels import decode_attend_int8 as int8
from ringkv.kernels import decode_attend_turbo4 as turbo4
from ringkv.kernels.encoded_attend import Encoding
from ringkv.kernels.partial import Partial


class Format(NamedTuple):
    encodings: tuple[Encoding, Encoding]  # of keys and of values
    attend: Callable[..., Partial]
    reference: Callable[..., tuple[Tensor, Tensor]]


FORMATS = {
    "int8": Format((int8.INT8, int8.INT8), int8.decode_attend_int8, int8.reference),
    "fp8": Format((fp8.FP8, fp8.FP8), fp8.decode_attend_fp8, fp8.reference),
    "int4": Format((int4.INT4, int4.INT4), int4.decode_attend_int4, int4.reference),
    "turbo4": Format((turbo4.TURBO4, int4.INT4), turbo4.decode_attend_turbo4, turbo4.reference),
}
