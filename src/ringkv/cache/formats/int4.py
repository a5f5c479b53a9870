"""int4: rotated 4-bit integers, two in a byte [D / 2], and a scale and a minimum in float16 [2] per vector."""

import torch

from ringkv.cache.formats.storage import Part, encoded
from ringkv.kernels.decode_attend_int4 import INT4, decode_attend_int4

PARTS = Part(torch.uint8, lambda width: (width // 2,)), Part(torch.float16, lambda _: (2,))
INT4_FORMAT = encoded(INT4, PARTS, decode_attend_int4)
