"""pages: plain or int8 vectors of which a step reads some pages. `PagesBody` has their digests and pins."""

from ringkv.cache.formats.int8 import INT8_FORMAT
from ringkv.cache.formats.plain import PLAIN
from ringkv.kernels.decode_attend_pages import decode_attend_pages
from ringkv.kernels.decode_attend_pages_int8 import decode_attend_pages_int8

_BESIDE = (0, 2), (0, 2), (0,)
PAGES = PLAIN._replace(beside=_BESIDE, attend=decode_attend_pages)
PAGES_INT8 = INT8_FORMAT._replace(beside=(*INT8_FORMAT.beside, *_BESIDE), attend=decode_attend_pages_int8)
