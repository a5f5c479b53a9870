"""watched: plain vectors of slots that keep the last queries. `WatchedBody` has these."""

from ringkv.cache.formats.plain import PLAIN
from ringkv.kernels.keep_queries import decode_attend_watched

WATCHED = PLAIN._replace(beside=((0, 1),), attend=decode_attend_watched)
