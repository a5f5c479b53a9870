"""FORMATS: the storage formats by name. storage: that of a plane."""

from collections.abc import Mapping

from ringkv.base.cache_spec import Plane, SlotKind
from ringkv.cache.formats.by_head import BY_HEAD
from ringkv.cache.formats.fp8 import FP8_FORMAT
from ringkv.cache.formats.int4 import INT4_FORMAT
from ringkv.cache.formats.int8 import INT8_FORMAT
from ringkv.cache.formats.latents import BY_GROUPS
from ringkv.cache.formats.pages import PAGES, PAGES_ESTIMATED, PAGES_INT8, PAGES_INT8_ESTIMATED, RECALLED
from ringkv.cache.formats.plain import PLAIN
from ringkv.cache.formats.storage import StorageFormat
from ringkv.cache.formats.turbo4 import TURBO4_FORMAT
from ringkv.cache.formats.watched import WATCHED
from ringkv.cache.formats.zipcache import ZIPCACHE

FORMATS: Mapping[SlotKind, StorageFormat] = {
    "plain": PLAIN,
    "int8": INT8_FORMAT,
    "fp8": FP8_FORMAT,
    "int4": INT4_FORMAT,
    "turbo4": TURBO4_FORMAT,
    "zipcache": ZIPCACHE,
    "by_head": BY_HEAD,
    "pages": PAGES,
    "pages_int8": PAGES_INT8,
    "pages_estimated": PAGES_ESTIMATED,
    "pages_int8_estimated": PAGES_INT8_ESTIMATED,
    "recalled": RECALLED,
    "watched": WATCHED,
}


def storage(plane: Plane) -> StorageFormat:
    """Return how a plane is stored: vectors whole, or latents by groups."""
    return (FORMATS if plane.group is None else BY_GROUPS)[plane.format]
