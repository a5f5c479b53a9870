"""zipcache: salient tokens in 4 bits, the others in 2, and the newest ones plain. `ZipBody` has its planes."""

from typing import NoReturn

from ringkv.cache.formats.storage import BY_ROW, StorageFormat
from ringkv.kernels.decode_attend_zip import decode_attend_zip


def _in_chunks(*_: object) -> NoReturn:
    raise AssertionError("keys and values of a chunk are encoded together, by `ZipBody`")


ZIPCACHE = StorageFormat(5, BY_ROW, _in_chunks, _in_chunks, _in_chunks, decode_attend_zip)
