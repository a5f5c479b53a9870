"""slot_format: how slots store keys and values, from the user's settings."""

from typing import get_args

from ringkv.base.cache_spec import IN_HOST_MEMORY, SKIPPED, Pages, PlaneFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import CALIBRATED, PAGES, PAGES_BY, UNREAD, WATCHING, KVChoice
from ringkv.base.page_counts import resident_pages
from ringkv.models.slot_formats import Cached, check_heads_of_ranks, check_slot_format, check_weigh
from ringkv.plan.checks import at_least, one_of
from ringkv.plan.kv_settings import OF_PAGES, SlotSettings, is_set

IN_MEMORY = (None, IN_HOST_MEMORY)  # values of `kv_tier` that are no directory


def slot_format(model: Cached, settings: SlotSettings, kv: KVChoice, ranks: int) -> SlotFormat:
    """Return the format for a default choice. Raises `InvalidRequest`, naming what the model cannot have."""
    _check_pages_are_read(settings, kv)
    format: PlaneFormat = one_of(get_args(PlaneFormat), "kv_format", settings.kv_format, "plain")
    skipped = at_least(0, "kv_format_skip", settings.kv_format_skip, SKIPPED[format])
    pages = _pages(settings) if kv.reads_pages else None
    review = kv.review if kv.policy in WATCHING else 0
    slots = SlotFormat(format, skipped, kv.heads != "equal", pages, review, kv.policy in CALIBRATED)
    check_slot_format(model, slots)
    check_heads_of_ranks(slots, ranks)
    check_weigh(model.groups, kv)
    return slots


def with_residents(slots: SlotFormat, tier: str | None, device: str, kv: KVChoice, capacity: int) -> SlotFormat:
    """Return the format of slots of so many entries, with places on the GPU if all entries are in its host's memory."""
    if slots.pages is None or tier != IN_HOST_MEMORY or device == "cpu":
        return slots
    if slots.pages.estimated:
        raise InvalidRequest(
            f"kv_unread estimate is not implemented for kv_tier {tier} beside a GPU; choose drop, or leave kv_tier out",
            "kv_unread",
        )
    return slots._replace(pages=slots.pages._replace(resident=resident_pages(kv, capacity, slots.pages.size)))


def check_read(kv: KVChoice) -> None:
    """Raise InvalidRequest if a choice says how much of a slot a step reads, and its policy reads all."""
    if kv.read is not None and kv.policy != "snapkv":
        raise InvalidRequest(
            f"kv_read {kv.read} is for kv_policy snapkv, and it is {kv.policy}; choose snapkv, or leave kv_read out",
            "kv_read",
        )


def _check_pages_are_read(settings: SlotSettings, kv: KVChoice) -> None:
    """Raise InvalidRequest for a setting of pages if nothing reads them."""
    check_read(kv)
    for name in OF_PAGES:
        value = getattr(settings, name)
        if is_set(settings, name) and not kv.reads_pages:
            shown = name if value is True else f"{name} {value}"
            raise InvalidRequest(
                f"{shown} is for kv_policy arkvale, and it is {kv.policy}; choose arkvale, or "
                f"snapkv with kv_read, or leave {name} out",
                name,
            )


def _pages(settings: SlotSettings) -> Pages:
    size = PAGES[0] if settings.kv_page is None else settings.kv_page
    if size not in PAGES:
        raise InvalidRequest(f"kv_page is {size}; it must be one of {', '.join(map(str, PAGES))}", "kv_page")
    unread = one_of(UNREAD, "kv_unread", settings.kv_unread, "drop")
    by = one_of(PAGES_BY, "kv_pages_by", settings.kv_pages_by, "head")
    on_disk = settings.kv_tier not in IN_MEMORY
    return Pages(size, on_disk=on_disk, estimated=unread == "estimate", by_layer=by == "layer")
