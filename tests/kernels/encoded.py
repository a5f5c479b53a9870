"""FORMATS: the formats whose vectors have one encoding for keys and values, and a Triton kernel; for tests."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ringkv.kernels import decode_attend_fp8 as fp8
from ringkv.kernels import decode_attend_int4 as int4
from ringkv.kernels import decode_attend_int8 as int8
from ringkv.kernels.encoded_attend import Encoding
from ringkv.kernels.partial import Partial


class Format(NamedTuple):
    encoding: Encoding
    attend: Callable[..., Partial]
    reference: Callable[..., tuple[Tensor, Tensor]]


FORMATS = {
    "int8": Format(int8.INT8, int8.decode_attend_int8, int8.reference),
    "fp8": Format(fp8.FP8, fp8.decode_attend_fp8, fp8.reference),
    "int4": Format(int4.INT4, int4.decode_attend_int4, int4.reference),
}
