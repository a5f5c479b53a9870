"""slot_bodies: the class that stores slots, by how attention reads them."""

from collections.abc import Mapping

from ringkv.base.cache_spec import ESTIMATED, IN_CHUNKS, IN_PAGES, LayerGroup, SlotKind
from ringkv.cache.body import Body
from ringkv.cache.calibrated_body import CalibratedBody
from ringkv.cache.formats.storage import Allocate
from ringkv.cache.heads_body import HeadsBody
from ringkv.cache.pages_body import PagesBody
from ringkv.cache.recall_body import RecallBody
from ringkv.cache.watched_body import WatchedBody
from ringkv.cache.zip_body import ZipBody

_BODIES: Mapping[SlotKind, type[Body]] = {
    IN_CHUNKS: ZipBody,
    "by_head": HeadsBody,
    **dict.fromkeys((*IN_PAGES.values(), *ESTIMATED.values()), PagesBody),
    "watched": WatchedBody,
}


def allocate_slots(
    group: LayerGroup, rows: int, entries: int, allocate: Allocate, tier: Allocate | None = None
) -> Body:
    """Return the memory of slots in the format of a group's planes; the arguments are those of `Body.allocate`.

    tier: allocates the planes of pages that are on disk, or in the host's memory beside a GPU.
    """
    if group.pages and group.pages.resident:
        return RecallBody.allocate(group, rows, entries, allocate, tier)
    if group.pages and group.pages.on_disk:
        return PagesBody.allocate(group, rows, entries, allocate, tier)
    if group.calibrated:
        return CalibratedBody.allocate(group, rows, entries, allocate)
    return _BODIES.get(group.kind, Body).allocate(group, rows, entries, allocate)
