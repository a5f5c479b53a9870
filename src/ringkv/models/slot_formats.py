"""slot_formats: numbers of slots that do not fit a model, and what an engine's slots lack for a request. No torch.

Features that do not go together are in `base.cannot`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ringkv.base.cache_spec import IN_CHUNKS, WIDTH_UNITS, LayerGroup, SlotFormat
from ringkv.base.cannot import INSTEAD, Feature, refuse
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, HeadBudgets, KVChoice, Layouts
from ringkv.base.page_counts import most_read
from ringkv.base.wanted import Caches, of_choice, of_groups, of_slots

ZIP_WORD = 8  # elements of 2 bits that CUDA's kernels load together


def check_sizes(model: Caches, slots: SlotFormat, device: str) -> None:
    """Raise InvalidRequest, naming the setting, if a model has too few layers, or heads of a width that is not packed.

    device: where steps run, such as "cuda:0".
    """
    if slots.encoding == "plain" and slots.skip:
        raise InvalidRequest(
            f"kv_format_skip {slots.skip} keeps layers plain, and kv_format plain keeps all of them; "
            "choose another kv_format, or leave kv_format_skip out",
            "kv_format_skip",
        )
    if slots.encoding != "plain" and 2 * slots.skip >= model.num_layers:
        raise InvalidRequest(
            f"kv_format_skip {slots.skip} keeps all {model.num_layers} layers plain, {slots.skip} at each end; "
            f"lower it to at most {(model.num_layers - 1) // 2}, or choose kv_format plain",
            "kv_format_skip",
        )
    is_zip_on_gpu = slots.encoding == IN_CHUNKS and device != "cpu"
    unit = ZIP_WORD if is_zip_on_gpu else WIDTH_UNITS[slots.encoding]
    for width in (plane.width for group in model.groups for plane in group.spec.planes if plane.width % unit):
        raise InvalidRequest(
            f"kv_format {slots.encoding} packs {unit} elements together on {device}, which do not divide a head of "
            f"{width}; choose int8 or plain",
            "kv_format",
        )


def check_request(groups: Sequence[LayerGroup], choice: KVChoice) -> None:
    """Raise InvalidRequest, naming the setting, if an engine's slots cannot do what a request chooses."""
    wanted = of_choice(choice)
    refuse(of_groups(groups) | wanted)
    started: dict[Feature, str] = {}
    for group in groups:
        started |= of_slots(group.slots)
    for feature, without in _STARTED_WITH.items():
        if feature in wanted and feature not in started:
            raise InvalidRequest(
                f"{wanted[feature]} is for an engine that was started with it, and this one's slots {without}; "
                f"start it so, or choose {INSTEAD[feature]}",
                wanted[feature].partition(" ")[0],
            )
    kept = max(group.slots.queries for group in groups)
    if choice.review_interval > kept:
        raise InvalidRequest(
            f"kv_review is {choice.review}, and the engine's slots keep {kept} queries; lower it, or start with more",
            "kv_review",
        )


_STARTED_WITH: Mapping[Feature, str] = {
    "pages": "have no pages",
    "reviews": "keep no queries",
    "ragged heads": "have equal heads",
}
"""Features of a request that slots must have been allocated for, and what other slots are like."""


def check_profile(heads: HeadBudgets, has_profile: bool) -> None:
    """Raise InvalidRequest, naming `kv_heads`, if heads would divide a slot by a profile that an engine lacks."""
    if heads == "profile" and not has_profile:
        raise InvalidRequest(
            "kv_heads is profile, and the engine has no profile of its model's heads; run ringkv profile MODEL and "
            "start the engine again, or choose global",
            "kv_heads",
        )


def check_residents_of_request(groups: Sequence[LayerGroup], layouts: Layouts, choice: KVChoice) -> None:
    """Raise InvalidRequest, naming the setting, if a step would read more pages than have a place on the GPU."""
    for group, layout in zip(groups, layouts, strict=True):
        pages = group.slots.pages
        if pages is None or not pages.resident:
            continue
        needed = most_read(layout, pages.size)
        if needed > pages.resident:
            raise InvalidRequest(
                f"a step of kv_policy {choice.policy} would read {needed * pages.size:,} entries, and with "
                f"kv_tier memory {pages.resident * pages.size:,} of a slot are on the GPU; lower kv_budget, or choose "
                "kv_policy arkvale, or start with a larger kv_budget",
                "kv_budget",
            )


def policies_of_requests(groups: Sequence[LayerGroup], default: KVChoice) -> Iterator[str]:
    """Yield the policies that a request may choose while its other settings are the engine's."""
    for policy in POLICIES:
        with suppress(InvalidRequest):
            check_request(groups, replace(default, policy=policy))
            yield policy
