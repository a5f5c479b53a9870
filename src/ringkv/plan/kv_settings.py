"""The settings of a request's cache. Each is declared once, as a field of a dataclass here.

Python options, command line flags, fields of HTTP requests and the table of docs/policies.md are made from them:

    LLM(kv_window=16)     ringkv serve --kv-window 16     {"prompt": "...", "kv_window": 16}

`AtStart` has the settings of an engine's default, `PerRequest` those of one request. None leaves a setting unset.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_type_hints

from ringkv.base.cache_spec import SKIPPED, PlaneFormat
from ringkv.base.checks import check, one_of
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, HeadBudgets, KVChoice, TurnMode
from ringkv.base.selectors import SELECTORS, Pooling, Selector, parameters
from ringkv.plan.units import parse_share

DEFAULT_BUDGET = 2048  # entries
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Setting:
    """kind: int, float (a share or a number of entries), str (a name), bool, or tuple (spans of tokens).

    field: the field of `KVChoice` that it sets, or the parameter of selectors; None for a setting that the planner
    converts. unit: the metavar on the command line. help: one sentence without its full stop and its default. flags:
    the command line flags, if they are not the name with dashes. fallback: the default, if `KVChoice` has none.
    """

    field: str | None
    kind: type
    unit: str
    help: str
    flags: str | None = None
    fallback: str | None = None

    def parse(self, value: Any) -> Any:
        """Convert a value that a user wrote to the choice's type."""
        convert = _PARSERS.get((self.kind, type(value)))
        return convert(value) if convert else value

    @property
    def selectors(self) -> list[str]:
        """Selectors that have this parameter; [] for a setting of the choice itself."""
        return [name for name, kind in SELECTORS.items() if self.field in parameters(kind())]

    @property
    def default(self) -> str:
        """The default as text; "" if there is none."""
        if self.fallback is not None:
            return self.fallback
        owner = SELECTORS[self.selectors[0]]() if self.selectors else KVChoice()
        value = getattr(owner, str(self.field))
        return _SHOWN.get(self.kind, str)(value)

    @property
    def described(self) -> str:
        """The help with the default, as a sentence."""
        return f"{self.help}; {self.default} by default." if self.default else f"{self.help}."


def _spans(value: Any) -> Spans:
    return tuple((first, stop) for first, stop in value)


_PARSERS: Mapping[tuple[type, type], Callable[[Any], Any]] = {(float, str): parse_share, (tuple, list): _spans}


def _one_of(values: Iterable[str]) -> str:
    *others, last = values
    return f"{', '.join(others)} or {last}"


_SHOWN: Mapping[type, Callable[[Any], str]] = {
    bool: lambda value: "on" if value else "off",
    float: lambda value: f"{100 * value:g}%",
    str: lambda value: str(getattr(value, "name", value)),
}


@dataclass(frozen=True)
class BudgetSettings:
    kv_policy: Annotated[
        str | None,
        Setting(
            "policy",
            str,
            "NAME",
            f"What is kept: {_one_of(POLICIES)}; at start also auto, which evicts only if memory is short",
        ),
    ] = None
    kv_budget: Annotated[
        int | None,
        Setting(
            "budget",
            int,
            "ENTRIES",
            "Tokens that a request may hold, however long it gets; with arkvale, that a step reads",
            fallback=str(DEFAULT_BUDGET),
        ),
    ] = None


@dataclass(frozen=True)
class CompressionSettings:
    kv_compression: Annotated[
        str | float | None,
        Setting(None, str, "RATIO", "Instead of a budget: the longest prompt divided by this, such as 4x", fallback=""),
    ] = None


@dataclass(frozen=True)
class FormatSettings:
    kv_format: Annotated[
        PlaneFormat | None,
        Setting(
            None,
            str,
            "FORMAT",
            "How slots store keys and values: plain is the engine's dtype, int8 takes half of 16 bits, int4 and "
            "zipcache about a quarter",
            fallback="plain",
        ),
    ] = None
    kv_format_skip: Annotated[
        int | None,
        Setting(
            None,
            int,
            "LAYERS",
            "Layers at each end of the model whose slots stay plain",
            fallback=f"{SKIPPED['int4']} below 8 bits, else {SKIPPED['plain']}",
        ),
    ] = None


@dataclass(frozen=True)
class PageSettings:
    kv_page: Annotated[
        int | None, Setting(None, int, "ENTRIES", "Entries of a page that arkvale reads: 32 or 16", fallback="32")
    ] = None
    kv_tier: Annotated[
        str | None,
        Setting(
            None,
            str,
            "WHERE",
            "Where arkvale keeps all entries: memory (of a GPU's host, pinned), or a directory of a local disk",
            fallback="the device's memory",
        ),
    ] = None


@dataclass(frozen=True)
class ProfileSettings:
    kv_profile: Annotated[
        str | None,
        Setting(None, str, "FILE", "File of ringkv profile", fallback="beside the model's weights"),
    ] = None


@dataclass(frozen=True)
class SlotSettings(PageSettings, FormatSettings):
    """The settings of how slots store keys and values, beside those of the choice."""


@dataclass(frozen=True)
class SelectionSettings:
    kv_sinks: Annotated[int | None, Setting("sinks", int, "TOKENS", "Leading tokens that are never evicted")] = None
    kv_recent: Annotated[
        str | float | None,
        Setting("recent", float, "SHARE", "Newest tokens to keep: a count, or a share of the budget"),
    ] = None
    kv_window: Annotated[int | None, Setting("window", int, "TOKENS", "Last prompt tokens, whose queries vote")] = None
    kv_kernel: Annotated[
        int | None, Setting("kernel", int, "TOKENS", "Width over which votes are pooled, an odd number")
    ] = None
    kv_pooling: Annotated[Pooling | None, Setting("pooling", str, "NAME", "How votes are pooled: max or avg")] = None
    kv_select: Annotated[str | None, Setting("select", str, "NAME", f"Selection method: {_one_of(SELECTORS)}")] = None
    kv_heads: Annotated[
        HeadBudgets | None,
        Setting(
            "heads",
            str,
            "NAME",
            "Selected tokens of each head: equal, global (heads share those of all layers) or profile (as ringkv "
            "profile has measured)",
        ),
    ] = None
    kv_review: Annotated[
        int | None,
        Setting("review", int, "TOKENS", "Entries that scissorhands evicts at once"),
    ] = None
    kv_elastic: Annotated[
        bool | None,
        Setting(
            "elastic",
            bool,
            "",
            "Lend a short prompt's unused entries to the ring; the paper does not",
            flags="--kv-elastic/--kv-paper-layout",
        ),
    ] = None


@dataclass(frozen=True)
class ProtectionSettings:
    kv_protect: Annotated[
        Spans | None,
        Setting(
            "protect",
            tuple,
            "TOKENS",
            "Spans of prompt tokens that are never evicted, [[first, one past the last], ...]",
            fallback="a chat's system message, if it takes at most half of the selected entries",
        ),
    ] = None


@dataclass(frozen=True)
class TurnSettings:
    kv_turns: Annotated[
        TurnMode | None,
        Setting(
            "turns",
            str,
            "NAME",
            "A conversation's next turn: reread selects again from all of it, continue from what was kept",
        ),
    ] = None


# Fields are in the order of the bases from last to first. Labels of evaluations follow the order of `PerRequest`.
@dataclass(frozen=True)
class AtStart(TurnSettings, SelectionSettings, ProfileSettings, SlotSettings, CompressionSettings, BudgetSettings):
    """The settings of an engine's default."""


@dataclass(frozen=True)
class PerRequest(TurnSettings, ProtectionSettings, SelectionSettings, BudgetSettings):
    """The settings of one request."""


def settings_of(kind: Any) -> dict[str, Setting]:
    """Settings that a dataclass declares, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: setting for one in fields(kind) if (setting := setting_of(hints[one.name]))}


def setting_of(hint: Any) -> Setting | None:
    """The setting that a field's annotation declares; None if it declares none."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Setting)), None)


AT_START: Mapping[str, Setting] = settings_of(AtStart)
PER_REQUEST: Mapping[str, Setting] = settings_of(PerRequest)
OF_PAGES = tuple(settings_of(PageSettings))
"""Settings that only slots in pages have."""


def changed(choice: KVChoice, given: Mapping[str, Any]) -> KVChoice:
    """Return the choice with the given settings changed.

    If the selector changes, the new one keeps the values of parameters that both have.
    Raises `InvalidRequest` naming the setting that is invalid or that the selector does not have.
    """
    values = {str(PER_REQUEST[name].field): PER_REQUEST[name].parse(value) for name, value in given.items()}
    of_selector = {name: values.pop(name) for name in list(values) if name not in vars(choice)}
    select = _selector(choice.select, values.pop("select", None), of_selector)
    return replace(choice, **values, select=select)


def _selector(before: Selector, name: str | None, given: Mapping[str, Any]) -> Selector:
    check([one_of("kv_select", name or before.name, SELECTORS)])
    kind = SELECTORS[name or before.name]
    known = parameters(kind())
    for one in given:
        if one not in known:
            raise InvalidRequest(_not_a_parameter(f"kv_{one}", kind().name, known), f"kv_{one}")
    shared = {one: value for one, value in parameters(before).items() if one in known}
    return kind(**{**shared, **given})


def _not_a_parameter(name: str, select: str, known: Mapping[str, Any]) -> str:
    owners = " and ".join(PER_REQUEST[name].selectors)
    takes = ", ".join(f"kv_{one}" for one in known) or "none"
    return f"{name} is a parameter of kv_select {owners}; kv_select {select} takes {takes}"
