"""numbers: those in a prefix that steps use as indices and as counts, and what they must be.

A prefix is that of a slot that was filled and has decoded nothing. So nearly all of them follow from its layout.
"""

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.kv import Layout
from ringkv.base.page_counts import EVERYTHING, PageCounts
from ringkv.base.zip_sizes import COUNTS, counts_of


def are_valid(name: str, raw: memoryview, group: LayerGroup, layout: Layout, entries: int) -> bool:
    """Whether the numbers in a tensor with the name of a `base.cache_spec.SlotPart` are valid; True for other tensors.

    layout: it is valid, and that of the group. entries: of the group's slots.
    """
    import numpy as np

    live = layout.live(layout.prompt)
    match name:
        case "places":  # `cache.body.Body.take` makes them: heads follow each other and all find room
            first, more = np.frombuffer(raw, np.int32).reshape(-1, 2).astype(np.int64).T
            room = more + entries
            follow = np.array_equal(first, room.cumsum() - room)
            return follow and bool((more >= -min(layout.protected, live)).all()) and not more.sum()
        case "counts of pages":
            assert group.slots.pages is not None
            of_pages = PageCounts.of(layout, group.slots.pages.size) or EVERYTHING
            return bool((np.frombuffer(raw, np.int32).reshape(-1, len(of_pages)) == of_pages).all())
        case "pins":
            return bool(np.isinf(np.frombuffer(raw, np.float32)).all())
        case "positions":
            positions = np.frombuffer(raw, np.int32)
            return bool(((positions >= 0) & (positions < layout.prompt)).all())
        case "history":  # no review has counted anything
            return not np.frombuffer(raw, np.uint8).any()
        case "counts of chunks":
            of_chunks = counts_of(live, min(layout.fixed, live))
            return bool((np.frombuffer(raw, np.int32).reshape(-1, COUNTS) == of_chunks).all())
    return True
