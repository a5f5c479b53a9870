"""turbo4: rotated keys as places in a codebook, two in a byte [D / 2], and a float16 norm per vector.

Values are int4.
"""

import torch

from ringkv.cache.formats.storage import Part, encoded
from ringkv.kernels.decode_attend_turbo4 import TURBO4, decode_attend_turbo4

_PARTS = Part(torch.uint8, lambda width: (width // 2,)), Part(torch.float16, lambda _: ())
TURBO4_FORMAT = encoded(TURBO4, _PARTS, decode_attend_turbo4)
