"""Parameters of a command that are dataclasses, whose fields become the command's options.

@spread
def chat(*, engine: Annotated[Options, Flags(slots=...)], access: AccessOptions) -> None: ...  # ringkv chat --slots 2
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints

LESS_COMMON = "Less common"
"""Begins the names of the panels at the end of --help."""


class Flags(dict[str, Any]):
    """Fields of a dataclass that are options of a command, with their typer annotations, in the order of --help."""


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each parameter that is a dataclass replaced by options, keyword only.

    Of a dataclass that is annotated with `Flags` those fields alone are options, and the others have their defaults.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    kinds = {name: getattr(given.annotation, "__origin__", given.annotation) for name, given in parameters.items()}
    groups = {name: _options(kind, parameters[name].annotation) for name, kind in kinds.items() if is_dataclass(kind)}
    flat = [
        option
        for name, given in parameters.items()
        for option in groups.get(name, {name: given.replace(kind=Parameter.KEYWORD_ONLY)}).values()
    ]
    flat.sort(key=_is_less_common)

    @wraps(command)
    def run(**given: Any) -> None:
        for name, options in groups.items():
            given[name] = kinds[name](**{field: _frozen(given.pop(field)) for field in options})
        command(**given)

    # typer reads the signature and annotations; through __wrapped__ it would find the original command's.
    vars(run).update(__signature__=Signature(flat))
    run.__annotations__ = {option.name: option.annotation for option in flat}
    del vars(run)["__wrapped__"]
    return run


def _options(kind: Any, annotation: Any) -> Mapping[str, Parameter]:
    """Return a dataclass's options by field. Those without `Flags` are all fields, with their own annotations."""
    flags = getattr(annotation, "__metadata__", (get_type_hints(kind, include_extras=True),))[0]
    by_name = {field.name: field for field in fields(kind)}
    return {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=by_name[name].default, annotation=flag)
        for name, flag in flags.items()
    }


def _is_less_common(option: Parameter) -> bool:
    declared = next(iter(getattr(option.annotation, "__metadata__", ())), None)
    return str(getattr(declared, "rich_help_panel", "")).startswith(LESS_COMMON)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
