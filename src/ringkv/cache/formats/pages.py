"""pages: plain or int8 vectors of which a step reads some pages. `PagesBody` has their digests and pins.

`RecallBody` has those that are on a GPU, if all are in its host's memory.
"""

from ringkv.cache.formats.int8 import INT8_FORMAT
from ringkv.cache.formats.plain import PLAIN
from ringkv.kernels.decode_attend_pages import decode_attend_pages
from ringkv.kernels.decode_attend_pages_int8 import decode_attend_pages_int8
from ringkv.kernels.decode_attend_recall import decode_attend_recall

_BESIDE = (0, 2), (0, 2), (0,)
_RESIDENTS = (0, 2), (0, 2), (0, 2), (0, 2), (0,)
PAGES = PLAIN._replace(beside=_BESIDE, attend=decode_attend_pages)
PAGES_INT8 = INT8_FORMAT._replace(beside=(*INT8_FORMAT.beside, *_BESIDE), attend=decode_attend_pages_int8)
RECALLED = PLAIN._replace(beside=(*_BESIDE, *_RESIDENTS), attend=decode_attend_recall)
