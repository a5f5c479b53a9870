"""Command line flags of the settings in `plan.kv_settings`."""

from typing import Annotated, Any

from ringkv.cli.counts import token_count
from ringkv.cli.option import option
from ringkv.plan.kv_settings import AT_START, Setting, setting_of

CACHE = "Cache"  # panel of --help
TYPES: dict[type, Any] = {int: int, bool: bool}  # all others are strings, parsed where they are checked
PARSERS: dict[type, Any] = {int: token_count}


def annotation(name: str, hint: Any) -> Any:
    """Return the typer annotation of a field: from its setting if it declares one, else its own."""
    setting = setting_of(hint)
    return hint if setting is None else Annotated[TYPES.get(setting.kind, str) | None, _option(name, setting)]


def flag(name: str) -> Any:
    """Return the typer option of a setting that a server starts with."""
    return _option(name, AT_START[name])


def _option(name: str, setting: Setting) -> Any:
    flags = setting.flags or "--" + name.replace("_", "-")
    parser = PARSERS.get(setting.kind)
    return option(CACHE, flags, setting.unit, setting.described, parser=parser)
