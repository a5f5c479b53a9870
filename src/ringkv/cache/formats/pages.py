"""pages: plain vectors of which a step reads some pages. `PagesBody` has their digests."""

from ringkv.cache.formats.plain import PLAIN
from ringkv.kernels.decode_attend_pages import decode_attend_pages

PAGES = PLAIN._replace(beside=((0, 2), (0,)), attend=decode_attend_pages)
