"""The settings of a request's cache. Each is declared once, as a row of a table here.

Python options, command line flags, fields of HTTP requests and the table of docs/policies.md are made from them:

    LLM(kv_window=16)     ringkv serve --kv-window 16     {"prompt": "...", "kv_window": 16}

None leaves a setting unset.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.cache_spec import SKIPPED
from ringkv.base.checks import check, one_of
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, KVChoice
from ringkv.base.selectors import SELECTORS, Selector, parameters
from ringkv.plan.units import parse_share

DEFAULT_BUDGET = 2048  # entries


@dataclass(frozen=True)
class Setting:
    """kind: int, float (a share or a number of entries), str (a name), bool, or tuple (spans of tokens).

    field: the field of `KVChoice` that it sets, or the parameter of selectors; None for a setting of engines, which the
    planner converts. unit: the metavar on the command line. help: one sentence without its full stop and its default.
    flags: the command line flags, if they are not the name with dashes. fallback: the default, if `KVChoice` has none.
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


def _spans(value: Any) -> tuple[tuple[int, int], ...]:
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


SETTINGS: Mapping[str, Setting] = {
    "kv_policy": Setting(
        "policy",
        str,
        "NAME",
        f"What is kept: {_one_of(POLICIES)}; at start also auto, which evicts only if memory is short",
    ),
    "kv_budget": Setting(
        "budget",
        int,
        "ENTRIES",
        "Tokens kept for each request, however long it gets; with arkvale, tokens that a step reads",
        fallback=str(DEFAULT_BUDGET),
    ),
    "kv_compression": Setting(
        None, str, "RATIO", "Instead of a budget: the longest prompt divided by this, such as 4x", fallback=""
    ),
    "kv_format": Setting(
        None,
        str,
        "FORMAT",
        "How slots store keys and values: plain is the engine's dtype, int8 takes half of 16 bits, int4 and zipcache "
        "about a quarter",
        fallback="plain",
    ),
    "kv_format_skip": Setting(
        None,
        int,
        "LAYERS",
        "Layers at each end of the model whose slots stay plain",
        fallback=f"{SKIPPED['int4']} below 8 bits, else {SKIPPED['plain']}",
    ),
    "kv_page": Setting(None, int, "ENTRIES", "Entries of a page that arkvale reads: 32 or 16", fallback="32"),
    "kv_tier": Setting(
        None,
        str,
        "WHERE",
        "Where arkvale keeps all entries: memory (of a GPU's host, pinned), or a directory of a local disk",
        fallback="the device's memory",
    ),
    "kv_profile": Setting(None, str, "FILE", "File of ringkv profile", fallback="beside the model's weights"),
    "kv_sinks": Setting("sinks", int, "TOKENS", "Leading tokens that are never evicted"),
    "kv_recent": Setting("recent", float, "SHARE", "Newest tokens to keep: a count, or a share of the budget"),
    "kv_window": Setting("window", int, "TOKENS", "Last prompt tokens, whose queries vote"),
    "kv_kernel": Setting("kernel", int, "TOKENS", "Width over which votes are pooled, an odd number"),
    "kv_pooling": Setting("pooling", str, "NAME", "How votes are pooled: max or avg"),
    "kv_select": Setting("select", str, "NAME", f"Selection method: {_one_of(SELECTORS)}"),
    "kv_heads": Setting(
        "heads",
        str,
        "NAME",
        "Selected tokens of each head: equal, global (heads share those of all layers) or profile (as ringkv profile "
        "has measured)",
    ),
    "kv_review": Setting("review", int, "TOKENS", "Entries that scissorhands evicts at once"),
    "kv_elastic": Setting(
        "elastic",
        bool,
        "",
        "Lend a short prompt's unused entries to the ring; the paper does not",
        flags="--kv-elastic/--kv-paper-layout",
    ),
    "kv_protect": Setting(
        "protect",
        tuple,
        "TOKENS",
        "Spans of prompt tokens that are never evicted, [[first, one past the last], ...]",
        fallback="a chat's system message, if it takes at most half of the selected entries",
    ),
    "kv_turns": Setting(
        "turns",
        str,
        "NAME",
        "A conversation's next turn: reread selects again from all of it, continue from what was kept",
    ),
}
AT_START = {name: setting for name, setting in SETTINGS.items() if name != "kv_protect"}
"""The settings of an engine's default. `plan.options.Options` has a field for each."""
PER_REQUEST = {name: setting for name, setting in SETTINGS.items() if setting.field is not None}
"""The settings of one request. Labels of evaluations follow their order."""
OF_PAGES = ("kv_page", "kv_tier")
"""Settings that only slots in pages have."""
SELECTION = tuple(name for name in PER_REQUEST if name not in ("kv_policy", "kv_budget", "kv_protect", "kv_turns"))
"""Settings of what is kept within a budget."""


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
    name = before.name if name is None else name
    check([one_of("kv_select", name, SELECTORS)])
    kind = SELECTORS[name]
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
