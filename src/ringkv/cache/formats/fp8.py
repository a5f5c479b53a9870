"""fp8: e4m3 bytes [D] and a float16 scale per vector."""

import torch

from ringkv.cache.formats.storage import Part, encoded
from ringkv.kernels.decode_attend_fp8 import FP8, decode_attend_fp8

PARTS = Part(torch.uint8, lambda width: (width,)), Part(torch.float16, lambda _: ())
FP8_FORMAT = encoded(FP8, PARTS, decode_attend_fp8)
