"""Options of a command from a TOML file and from environment variables, under the names of its flags.

The command line comes first, then the environment, the file, and the defaults. `--max-prompt 4096` is
`max-prompt = 4096` or `max_prompt = 4096` in the file, and RINGKV_SERVE_MAX_PROMPT=4096 in the environment. Both are
checked against the options that the command declares, so an option needs no entry elsewhere.
"""

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import typer

from ringkv.cli.failures import InvalidSettings, reworded
from ringkv.cli.foreign_flags import hint

CONFIG = "config"
ENVIRONMENT = "environment: "
SCALARS = (str, int, float)  # of TOML; a boolean is an int, and is for flags only


class Given(NamedTuple):
    """One value as a user wrote it. origin: "FILE: " or "environment: ". key: as it is written there."""

    origin: str
    key: str
    value: Any


def use_config(context: typer.Context, file: Path | None) -> Path | None:
    """Make the file and the environment the command's defaults. The callback of an eager option.

    Raises `InvalidSettings` that names the file or variable, the key and the value.
    """
    options = _options(context)
    from_file = _from_file(file, options) if file else {}
    from_environment = _from_environment(f"RINGKV_{str(context.info_name).upper()}_", options)
    context.default_map = {
        options[name].name: _parsed(context, options[name], given)
        for name, given in (from_file | from_environment).items()
    }
    return file


def _options(context: typer.Context) -> dict[str, Any]:
    """Return the command's options by flag without its dashes; --help and --config are eager, and no settings."""
    return {max(option.opts, key=len).lstrip("-"): option for option in context.command.params if not option.is_eager}


def _from_file(file: Path, options: Mapping[str, Any]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for key, value in _read(file).items():
        name = _known(f"{file}: ", key, key.replace("_", "-"), options)
        if name in given:
            raise InvalidSettings(f"{file}: {given[name].key} and {key} are the same option; leave one out")
        given[name] = Given(f"{file}: ", key, value)
    return given


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"cannot read {file} ({error.strerror}); give --config a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is not valid TOML: {error}") from error


def _from_environment(prefix: str, options: Mapping[str, Any]) -> dict[str, Given]:
    """Return the options that variables with the prefix set. An empty variable counts as absent."""
    given: dict[str, Given] = {}
    for variable, value in os.environ.items():
        key = variable.removeprefix(prefix).lower().replace("_", "-")
        if variable.startswith(prefix) and value and key != CONFIG:
            given[_known(ENVIRONMENT, variable, key, options)] = Given(ENVIRONMENT, variable, value)
    return given


def _known(origin: str, written: str, name: str, options: Mapping[str, Any]) -> str:
    """Return the name of an option. Raises `InvalidSettings` for any other name, with the option that was meant."""
    if name in options:
        return name
    instead, near = hint(f"--{name}", {f"--{option}" for option in options}), _near(name, options)
    remedy = instead or (f"did you mean {near}?" if near else "`ringkv serve --help` lists the options")
    raise InvalidSettings(f"{origin}there is no option {written}; {remedy}")


def _near(name: str, options: Mapping[str, Any]) -> str | None:
    """Return the option that was probably meant: by its opposite flag, by its field's name, or by a similar name."""
    for option, declared in options.items():
        if f"--{name}" in declared.secondary_opts:
            return f"{option} = false"
        if declared.name == name.replace("-", "_"):
            return option
    return next(iter(get_close_matches(name, options, n=1)), None)


def _parsed(context: typer.Context, option: Any, given: Given) -> Any:
    """Return a value as the command line would parse it."""
    try:
        return option.process_value(context, _as_typed(option, given))
    except typer.BadParameter as error:
        raise InvalidSettings(_refused(given, reworded(error.message).rstrip("."))) from error


def _as_typed(option: Any, given: Given) -> Any:
    """Return the text that a user would type for the value; a list of texts for a repeatable option."""
    value = given.value
    if option.is_flag:
        if not isinstance(value, (str, bool)):
            raise InvalidSettings(_refused(given, "give true or false"))
        return value
    if option.multiple and given.origin == ENVIRONMENT:
        value = value.split()
    values = value if option.multiple and isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, SCALARS) for item in values):
        raise InvalidSettings(_refused(given, "give a number or a text"))
    texts = list(map(str, values))
    return texts if option.multiple else texts[0]


def _refused(given: Given, rule: str) -> str:
    return f"{given.origin}{given.key} is {given.value!r}; {rule[:1].lower()}{rule[1:]}"
