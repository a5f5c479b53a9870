"""slot_bodies: the class that stores slots, by their format and by what their heads divide."""

from collections.abc import Mapping

from ringkv.base.cache_spec import IN_CHUNKS, LayerGroup, PlaneFormat
from ringkv.cache.body import Body
from ringkv.cache.formats.storage import Allocate
from ringkv.cache.heads_body import HeadsBody
from ringkv.cache.pages_body import PagesBody
from ringkv.cache.zip_body import ZipBody

_BODIES: Mapping[PlaneFormat, type[Body]] = {IN_CHUNKS: ZipBody}


def allocate_slots(
    group: LayerGroup, rows: int, entries: int, allocate: Allocate, tier: Allocate | None = None
) -> Body:
    """Return the memory of slots in the format of a group's planes; the arguments are those of `Body.allocate`.

    tier: allocates the planes of pages, if they are on disk.
    """
    if group.on_disk:
        return PagesBody.allocate(group, rows, entries, allocate, tier)
    return _kind(group).allocate(group, rows, entries, allocate)


def _kind(group: LayerGroup) -> type[Body]:
    if group.by_head:
        return HeadsBody
    return PagesBody if group.page else _BODIES.get(group.spec.key.format, Body)
