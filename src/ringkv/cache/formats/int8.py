"""int8: rotated 8-bit integers [D] and a float32 scale per vector."""

import torch

from ringkv.cache.formats.storage import Part, encoded
from ringkv.kernels.decode_attend_int8 import INT8, decode_attend_int8

PARTS = Part(torch.int8, lambda width: (width,)), Part(torch.float32, lambda _: ())
INT8_FORMAT = encoded(INT8, PARTS, decode_attend_int8)
