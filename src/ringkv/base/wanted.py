"""wanted: the features that a model, a slot format, a request's choice and an engine ask for, see `base.cannot`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from ringkv.base.cache_spec import IN_HOST_MEMORY, LayerGroup, SlotFormat
from ringkv.base.cannot import Feature, Wanted
from ringkv.base.kv import KEEP_EVERY_TOKEN, KVChoice

Asks = Iterable[tuple[bool, Feature, str]]
"""Whether a feature is wanted, its name, and what asks for it."""
DRAFT_MODEL = "speculative_config with a draft model"
HANDOFF: Wanted = {"handoff": "prefill apart from decode"}


class Caches(Protocol):
    """A model's caches: a `ModelConfig`, or the planner's `Shape`."""

    @property
    def groups(self) -> tuple[LayerGroup, ...]: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def shares_caches(self) -> bool: ...


def of_model(model: Caches) -> dict[Feature, str]:
    """Return what a model's caches are."""
    return of_groups(model.groups) | _true([(model.shares_caches, "shared caches", "caches that several layers share")])


def of_groups(groups: Sequence[LayerGroup]) -> dict[Feature, str]:
    """Return what an engine's groups of layers are, and how their slots are encoded."""
    windows = {group.window for group in groups}
    sizes = f"sliding windows of {max(window or 0 for window in windows):,} tokens"
    wanted = _true(
        (
            (any(group.spec.value is None for group in groups), "latents", "latent caches"),
            (None not in windows, "only windows", f"a model whose layers all have {sizes}"),
            (len(windows) > 1, "some windows", f"a model that has global layers and {sizes}"),
        )
    )
    for group in groups:
        wanted |= _encoded(group.slots)
    return wanted


def of_slots(slots: SlotFormat) -> dict[Feature, str]:
    """Return how slots are encoded, and what a step reads of them."""
    pages = slots.pages
    return _encoded(slots) | _true(
        (
            (pages is not None, "pages", "kv_policy arkvale"),
            (pages is not None and pages.on_disk, "tier on disk", "kv_tier with a directory"),
            (pages is not None and pages.resident > 0, "tier in host memory", "kv_tier memory"),
            (slots.is_ragged, "ragged heads", "kv_heads other than equal"),
            (slots.queries > 0, "reviews", "kv_policy scissorhands"),
        )
    )


def of_choice(choice: KVChoice) -> dict[Feature, str]:
    """Return what a request chooses, or the default of an engine."""
    select = f"kv_select {choice.select.name}"
    return _true(
        (
            (choice.turns == "continue", "continue", "kv_turns continue"),
            (choice.heads != "equal", "ragged heads", f"kv_heads {choice.heads}"),
            (choice.select.joins_heads, "selector joins heads", select),
            (choice.select.prefills_twice, "selector prefills twice", select),
            (choice.reads_pages, "pages", f"kv_policy {choice.policy}"),
            (choice.review_interval > 0, "reviews", f"kv_policy {choice.policy}"),
            (choice.policy in KEEP_EVERY_TOKEN, "every token", f"kv_policy {choice.policy}"),
        )
    )


class Start(NamedTuple):
    """What an engine is started with beside its slots. tier: the setting `kv_tier`, if there is one."""

    drafts: int = 0
    ranks: int = 1
    device: str = "cpu"
    tier: str | None = None
    draft_model: str = ""


def of_engine(model: Caches, slots: SlotFormat, choice: KVChoice, start: Start) -> Wanted:
    """Return everything that an engine has. choice: its default."""
    is_cuda = start.device.startswith("cuda")
    started = _true(
        (
            (start.drafts > 0, "drafts", f"speculate {start.drafts}"),
            (bool(start.draft_model), "draft model", DRAFT_MODEL),
            (start.ranks > 1, "ranks", f"tensor_parallel {start.ranks}"),
            (is_cuda, "cuda", f"device {start.device}"),
            (is_cuda and start.tier == IN_HOST_MEMORY, "tier in host memory", f"kv_tier {start.tier}"),
        )
    )
    return {**of_model(model), **of_slots(slots), **of_choice(choice), **started}


def _encoded(slots: SlotFormat) -> dict[Feature, str]:
    setting = f"kv_format {slots.encoding}"
    return {} if slots.encoding == "plain" else {slots.encoding: setting}


def _true(asks: Asks) -> dict[Feature, str]:
    return {feature: setting for is_wanted, feature, setting in asks if is_wanted}
