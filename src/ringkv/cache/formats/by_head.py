"""by_head: plain vectors in slots whose heads have different numbers of entries. `HeadsBody` has their planes."""

from typing import NoReturn

from ringkv.cache.formats.storage import BY_ROW, StorageFormat
from ringkv.kernels.decode_attend_heads import decode_attend_heads


def _whole(*_: object) -> NoReturn:
    raise AssertionError("the entries of all heads are divided together, by `HeadsBody`")


BY_HEAD = StorageFormat(1, BY_ROW, _whole, _whole, _whole, decode_attend_heads)
