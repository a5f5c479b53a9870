"""Command line flags of the settings in `plan.kv_settings`."""

from typing import Annotated, Any

import typer

from ringkv.plan.kv_settings import AT_START, Setting, setting_of

CACHE = "Cache"  # panel of --help
TYPES: dict[type, Any] = {int: int, bool: bool}  # all others are strings, parsed where they are checked


def annotation(name: str, hint: Any) -> Any:
    """Return the typer annotation of a field: from its setting if it declares one, else its own."""
    setting = setting_of(hint)
    return hint if setting is None else Annotated[TYPES.get(setting.kind, str) | None, _option(name, setting)]


def flag(name: str) -> Any:
    """Return the typer option of a setting that a server starts with."""
    return _option(name, AT_START[name])


def _option(name: str, setting: Setting) -> Any:
    flags = setting.flags or "--" + name.replace("_", "-")
    return typer.Option(flags, metavar=setting.unit, help=setting.described, rich_help_panel=CACHE, show_default=False)
