"""slot_formats: which models can have slots in which formats. Engine and planner both ask here. No torch."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from ringkv.base.cache_spec import (
    IN_CHUNKS,
    IN_PAGES,
    LATENT_FORMATS,
    MEANS,
    WIDTH_UNITS,
    LayerGroup,
    PlaneFormat,
    SlotFormat,
)
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import CALIBRATED, POLICIES, REVIEWING, WATCHING, HeadBudgets, KVChoice, Layouts
from ringkv.base.page_counts import most_read
from ringkv.base.selectors import TOVA, KeyDiff, Selector, SnapKV

ZIP_WORD = 8  # elements of 2 bits that CUDA's kernels load together


RESELECTING: tuple[type[Selector], ...] = (SnapKV, TOVA, KeyDiff)
"""Selectors that need only queries and keys, so that they can select again while decoding."""


class Cached(Protocol):
    """A model's caches: a `ModelConfig`, or the planner's `Shape`."""

    @property
    def groups(self) -> tuple[LayerGroup, ...]: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def shares_caches(self) -> bool: ...


def check_slot_format(model: Cached, slots: SlotFormat) -> None:
    """Raise InvalidRequest, naming the setting, if the model cannot have slots in this format."""
    if slots.by_head:
        _check_heads(model, slots)
    if slots.pages:
        _check_pages(model, slots)
    if slots.is_reviewed:
        _check_reviewed(model, slots)
    if slots.name == "plain":
        return _check_nothing_is_skipped(slots)
    _check_latents(model, slots)
    _check_widths(model, slots)
    _check_chunks(model, slots)
    _check_skipped(model, slots)


def check_drafts(slots: SlotFormat, drafts: int) -> None:
    """Raise InvalidRequest, naming `speculate`, if slots in this format cannot take drafts back."""
    if drafts and slots.name == IN_CHUNKS:
        raise InvalidRequest(
            f"speculate {drafts} is not implemented for kv_format {slots.name}, whose chunks cannot give tokens back; "
            "choose 0, or kv_format int4",
            "speculate",
        )
    if drafts and slots.pages and slots.pages.resident:
        raise InvalidRequest(
            f"speculate {drafts} is not implemented for kv_tier memory on a GPU; choose 0, or leave kv_tier out",
            "speculate",
        )
    if slots.pages and slots.pages.estimated and drafts >= MEANS:
        raise InvalidRequest(
            f"speculate {drafts} is not possible with kv_unread estimate, which keeps {MEANS} means: choose at most "
            f"{MEANS - 1}, or kv_unread drop",
            "speculate",
        )
    if drafts and slots.is_reviewed:
        raise InvalidRequest(
            f"speculate {drafts} is not implemented for policies that review slots; choose 0, or kv_policy snapstream",
            "speculate",
        )


def check_handoff(slots: SlotFormat) -> None:
    """Raise InvalidRequest, naming the setting, if slots in this format cannot leave for another process."""
    if slots.pages:
        raise InvalidRequest(
            "kv_policy arkvale is not implemented for prefill apart from decode, nor is kv_read; choose snapstream, or "
            "--role both",
            "kv_policy",
        )
    if slots.is_reviewed:
        raise InvalidRequest(
            "policies that review slots are not implemented for prefill apart from decode; choose kv_policy "
            "snapstream, or --role both",
            "kv_policy",
        )
    if slots.by_head:
        raise InvalidRequest(
            "kv_heads other than equal is not implemented for prefill apart from decode; choose equal, or --role both",
            "kv_heads",
        )
    if slots.name == IN_CHUNKS:
        raise InvalidRequest(
            f"kv_format {slots.name} is not implemented for prefill apart from decode; choose int4, or --role both",
            "kv_format",
        )


def check_on_cuda(model: Cached, slots: SlotFormat) -> None:
    """Raise InvalidRequest, naming the setting, if decode attention has no kernel for it on CUDA."""
    format = slots.name
    if slots.pages and slots.pages.on_disk:
        raise InvalidRequest("kv_tier with a directory is not implemented on CUDA; choose memory", "kv_tier")
    if slots.pages and format != "plain":
        raise InvalidRequest(
            f"kv_policy arkvale is not implemented for kv_format {format} on CUDA, nor is kv_read; choose plain",
            "kv_format",
        )
    if format == IN_CHUNKS:
        _check_unit(model, format, ZIP_WORD, " on CUDA")


def check_heads_of_request(groups: Sequence[LayerGroup], heads: HeadBudgets) -> None:
    """Raise InvalidRequest, naming `kv_heads`, if a request wants heads to divide slots that they cannot divide."""
    if heads != "equal" and not any(group.by_head for group in groups):
        start = "" if any(group.pages for group in groups) else f"start it with {heads}, or "
        message = f"kv_heads is {heads}, and the engine was started with equal; {start}send equal"
        raise InvalidRequest(message, "kv_heads")


def check_profile(heads: HeadBudgets, has_profile: bool) -> None:
    """Raise InvalidRequest, naming `kv_heads`, if heads would divide a slot by a profile that an engine lacks."""
    if heads == "profile" and not has_profile:
        raise InvalidRequest(
            "kv_heads is profile, and the engine has no profile of its model's heads; run ringkv profile MODEL and "
            "start the engine again, or choose global",
            "kv_heads",
        )


def check_weigh(groups: Sequence[LayerGroup], choice: KVChoice) -> None:
    """Raise InvalidRequest, naming `kv_weigh`, if a choice would weigh votes by values where that is not possible."""
    if choice.weigh == "none":
        return
    for is_wrong, why in (
        (any(group.spec.value is None for group in groups), "is not implemented for latents"),
        (choice.policy == "reselect", "is not implemented for kv_policy reselect, which also selects while decoding"),
        (choice.select.weighs_values, f"does not apply to kv_select {choice.select.name}, which does so itself"),
    ):
        if is_wrong:
            raise InvalidRequest(f"kv_weigh {choice.weigh} {why}; choose none", "kv_weigh")


def check_choice_of_request(groups: Sequence[LayerGroup], choice: KVChoice) -> None:
    """Raise InvalidRequest, naming the setting, if an engine's slots cannot do what a request chooses."""
    check_pages_of_request(groups, choice)
    check_reviews_of_request(groups, choice)
    check_weigh(groups, choice)


def check_pages_of_request(groups: Sequence[LayerGroup], choice: KVChoice) -> None:
    """Raise InvalidRequest, naming the setting, if a request wants to read pages of slots that have none."""
    if not choice.reads_pages or any(group.pages for group in groups):
        return
    setting, value = ("kv_policy", "arkvale") if choice.policy == "arkvale" else ("kv_read", choice.read)
    raise InvalidRequest(
        f"{setting} is {value}, and the engine's slots have no pages; start it with {setting} {value}", setting
    )


def check_residents_of_request(groups: Sequence[LayerGroup], layouts: Layouts, choice: KVChoice) -> None:
    """Raise InvalidRequest, naming the setting, if a step would read more pages than have a place on the GPU."""
    for group, layout in zip(groups, layouts, strict=True):
        if group.pages is None or not group.pages.resident:
            continue
        needed, places = most_read(layout, group.pages.size), group.pages.resident
        if needed > places:
            raise InvalidRequest(
                f"a step of kv_policy {choice.policy} would read {needed * group.pages.size:,} entries, and with "
                f"kv_tier memory {places * group.pages.size:,} of a slot are on the GPU; lower kv_budget, or choose "
                "kv_policy arkvale, or start with a larger kv_budget",
                "kv_budget",
            )


def check_reviews_of_request(groups: Sequence[LayerGroup], choice: KVChoice) -> None:
    """Raise InvalidRequest, naming the setting, if a request wants reviews of slots that lack what these need."""
    if choice.policy in WATCHING:
        _check_queries(groups, choice)
    if choice.policy in CALIBRATED and not any(group.calibrated for group in groups):
        raise InvalidRequest(
            f"kv_policy is {choice.policy}, and the engine was started with another one; start it with kv_policy "
            f"{choice.policy}",
            "kv_policy",
        )
    if choice.policy in REVIEWING and choice.turns == "continue":
        raise InvalidRequest(
            f"kv_turns continue is not implemented for kv_policy {choice.policy}; choose reread", "kv_turns"
        )
    if choice.policy == "reselect" and type(choice.select) not in RESELECTING:
        names = ", ".join(kind().name for kind in RESELECTING)
        raise InvalidRequest(
            f"kv_select {choice.select.name} cannot select again while decoding; choose one of {names}", "kv_select"
        )


def policies_of_requests(groups: Sequence[LayerGroup], default: KVChoice) -> Iterator[str]:
    """Yield the policies that a request may choose while its other settings are the engine's."""
    for policy in POLICIES:
        with suppress(InvalidRequest):
            check_choice_of_request(groups, replace(default, policy=policy))
            yield policy


def _check_queries(groups: Sequence[LayerGroup], choice: KVChoice) -> None:
    """Raise InvalidRequest if slots keep fewer queries than a review reads."""
    kept = max(group.review for group in groups)
    if not kept:
        raise InvalidRequest(
            f"kv_policy is {choice.policy}, and the engine's slots keep no queries; start it with kv_policy "
            f"{choice.policy}",
            "kv_policy",
        )
    if choice.review > kept:
        raise InvalidRequest(
            f"kv_review is {choice.review}, and the engine's slots keep {kept} queries; lower it, or start with more",
            "kv_review",
        )


def check_heads_of_ranks(slots: SlotFormat, ranks: int) -> None:
    """Raise InvalidRequest, naming the setting, if heads on several ranks cannot have slots in this format."""
    if slots.pages and slots.pages.by_layer and ranks > 1:
        raise InvalidRequest(
            f"kv_pages_by layer is not implemented for heads on {ranks} ranks, which would select their own pages; "
            "choose head",
            "kv_pages_by",
        )
    if slots.is_reviewed and ranks > 1:
        raise InvalidRequest(
            f"policies that review slots are not implemented for heads on {ranks} ranks; choose kv_policy snapstream",
            "kv_policy",
        )
    if slots.by_head and ranks > 1:
        raise InvalidRequest(
            f"kv_heads other than equal is not implemented for heads on {ranks} ranks; choose equal", "kv_heads"
        )


def _check_heads(model: Cached, slots: SlotFormat) -> None:
    """Raise InvalidRequest if heads cannot divide the entries of a slot."""
    if all(group.window is not None for group in model.groups):
        raise InvalidRequest(
            "kv_heads does not apply to a model whose layers all have a sliding window; choose equal", "kv_heads"
        )
    if slots.name != "plain":
        raise InvalidRequest(
            f"kv_heads other than equal is not implemented for kv_format {slots.name}; choose plain, or equal",
            "kv_heads",
        )
    if any(group.spec.value is None for group in model.groups):
        raise InvalidRequest("kv_heads does not apply to latents, which all heads share; choose equal", "kv_heads")


def _check_pages(model: Cached, slots: SlotFormat) -> None:
    """Raise InvalidRequest if slots cannot be read in pages."""
    if all(group.window is not None for group in model.groups):
        raise InvalidRequest(
            "kv_policy arkvale and kv_read do not apply to a model whose layers all have a sliding window; choose "
            "snapstream",
            "kv_policy",
        )
    if slots.name not in IN_PAGES:
        raise InvalidRequest(
            f"kv_policy arkvale is not implemented for kv_format {slots.name}, nor is kv_read; choose "
            f"{' or '.join(IN_PAGES)}",
            "kv_format",
        )
    if slots.by_head:
        raise InvalidRequest(
            "kv_policy arkvale keeps every token, so heads are equal, as they are with kv_read; leave kv_heads out",
            "kv_heads",
        )
    if slots.pages and slots.pages.resident and slots.name != "plain":
        raise InvalidRequest(
            f"kv_tier memory on a GPU is not implemented for kv_format {slots.name}; choose plain", "kv_format"
        )
    if any(group.spec.value is None for group in model.groups):
        raise InvalidRequest(
            "kv_policy arkvale is not implemented for latent caches, nor is kv_read; choose snapstream", "kv_policy"
        )


def _check_reviewed(model: Cached, slots: SlotFormat) -> None:
    """Raise InvalidRequest if slots cannot be reviewed."""
    if all(group.window is not None for group in model.groups):
        raise InvalidRequest(
            "policies that review slots do not apply to a model whose layers all have a sliding window; choose "
            "kv_policy snapstream",
            "kv_policy",
        )
    if slots.name != "plain":
        raise InvalidRequest(
            f"policies that review slots are not implemented for kv_format {slots.name}; choose plain", "kv_format"
        )
    if slots.by_head:
        raise InvalidRequest("policies that review slots keep as much in each head; leave kv_heads out", "kv_heads")
    if model.shares_caches or any(group.spec.value is None for group in model.groups):
        raise InvalidRequest(
            "policies that review slots are not implemented for latents or shared caches; choose kv_policy snapstream",
            "kv_policy",
        )


def _check_nothing_is_skipped(slots: SlotFormat) -> None:
    if slots.skip:
        raise InvalidRequest(
            f"kv_format_skip {slots.skip} keeps layers plain, and kv_format plain keeps all of them; "
            "choose another kv_format, or leave kv_format_skip out",
            "kv_format_skip",
        )


def _check_widths(model: Cached, slots: SlotFormat) -> None:
    _check_unit(model, slots.name, WIDTH_UNITS[slots.name])


def _check_unit(model: Cached, format: PlaneFormat, unit: int, where: str = "") -> None:
    """Raise InvalidRequest if so many elements, which the format packs together, do not divide a head."""
    for width in (plane.width for group in model.groups for plane in group.spec.planes if plane.width % unit):
        raise InvalidRequest(
            f"kv_format {format} packs {unit} elements together{where}, which do not divide a head of {width}; "
            "choose int8, fp8 or plain",
            "kv_format",
        )


def _check_latents(model: Cached, slots: SlotFormat) -> None:
    if slots.name not in LATENT_FORMATS and any(group.spec.value is None for group in model.groups):
        raise InvalidRequest(
            f"kv_format {slots.name} is not implemented for latent caches; choose {', '.join(LATENT_FORMATS)}",
            "kv_format",
        )


def _check_chunks(model: Cached, slots: SlotFormat) -> None:
    """Raise InvalidRequest if the format is in chunks and some caches cannot be."""
    faults = list(_unlike_chunks(model)) if slots.name == IN_CHUNKS else []
    if faults:
        raise InvalidRequest(
            f"kv_format {slots.name} is not implemented for {faults[0]}; choose int4, int8, fp8 or plain", "kv_format"
        )


def _unlike_chunks(model: Cached) -> Iterator[str]:
    """Yield the caches that cannot be in chunks, which are evicted later than a sliding window requires."""
    if model.shares_caches:
        yield "caches that several layers share"
    for window in (group.window for group in model.groups if group.window is not None):
        yield f"layers with a sliding window, which is {window} tokens here"


def _check_skipped(model: Cached, slots: SlotFormat) -> None:
    """Raise InvalidRequest if the layers at both ends are all layers."""
    if 2 * slots.skip >= model.num_layers:
        raise InvalidRequest(
            f"kv_format_skip {slots.skip} keeps all {model.num_layers} layers plain, {slots.skip} at each end; "
            f"lower it to at most {(model.num_layers - 1) // 2}, or choose kv_format plain",
            "kv_format_skip",
        )
