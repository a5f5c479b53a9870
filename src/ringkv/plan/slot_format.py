"""slot_format: how slots store keys and values, from the user's settings."""

from typing import get_args

from ringkv.base.cache_spec import IN_HOST_MEMORY, SKIPPED, PageFormat, PlaneFormat, Reading, SlotFormat
from ringkv.base.cannot import refuse
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import PAGES, KVChoice
from ringkv.base.page_counts import resident_pages
from ringkv.base.wanted import Caches, Start, of_engine
from ringkv.models.slot_formats import check_sizes
from ringkv.plan.checks import at_least, choice
from ringkv.plan.kv_settings import OF_PAGES
from ringkv.plan.options import Options

IN_MEMORY = (None, IN_HOST_MEMORY)  # values of `kv_tier` that are no directory


def slot_format(model: Caches, settings: Options, kv: KVChoice, start: Start) -> SlotFormat:
    """Return the format for a default choice: an encoding times a reading, parsed from the settings here alone.

    Raises `InvalidRequest`, naming what the model or the engine cannot have.
    """
    _check_pages_are_read(settings, kv)
    encoding: PlaneFormat = choice("kv_format", settings.kv_format, get_args(PlaneFormat), "plain")
    skipped = at_least(0, "kv_format_skip", settings.kv_format_skip, SKIPPED[encoding])
    slots = SlotFormat(encoding, _reading(settings, kv), kv.review_interval, skipped)
    refuse(of_engine(model, slots, kv, start))
    check_sizes(model, slots, start.device)
    return slots


def _reading(settings: Options, kv: KVChoice) -> Reading:
    if kv.reads_pages:
        return _pages(settings)
    return "ragged" if kv.heads != "equal" else "everything"


def with_residents(slots: SlotFormat, tier: str | None, device: str, kv: KVChoice, capacity: int) -> SlotFormat:
    """Return the format of slots of so many entries, with places on the GPU if all entries are in its host's memory."""
    if slots.pages is None or tier != IN_HOST_MEMORY or device == "cpu":
        return slots
    resident = resident_pages(kv, capacity, slots.pages.size)
    return slots._replace(reading=slots.pages._replace(resident=resident))


def _check_pages_are_read(settings: Options, kv: KVChoice) -> None:
    """Raise InvalidRequest for a setting of pages if nothing reads them."""
    for name in OF_PAGES:
        value = getattr(settings, name)
        if value is not None and not kv.reads_pages:
            raise InvalidRequest(
                f"{name} {value} is for kv_policy arkvale, and it is {kv.policy}; choose arkvale, or leave {name} out",
                name,
            )


def _pages(settings: Options) -> PageFormat:
    size = PAGES[0] if settings.kv_page is None else settings.kv_page
    if size not in PAGES:
        raise InvalidRequest(f"kv_page is {size}; it must be one of {', '.join(map(str, PAGES))}", "kv_page")
    return PageFormat(size, on_disk=settings.kv_tier not in IN_MEMORY)
