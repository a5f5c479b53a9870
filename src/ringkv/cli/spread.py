"""Options declared once in a dataclass and shared by several commands.

@spread
def chat(engine: EngineOptions, sampling: Sampling) -> None: ...     # ringkv chat --slots 2 --top-p 0.9
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from ringkv.cli.panels import common_first
from ringkv.cli.settings import annotation


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each parameter that is a dataclass replaced by that dataclass's fields, keyword only."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups = {name: one.annotation for name, one in parameters.items() if is_dataclass(one.annotation)}
    own = [one.replace(kind=Parameter.KEYWORD_ONLY) for name, one in parameters.items() if name not in groups]
    flat = own + common_first(field for group in groups.values() for field in _fields(group))

    @wraps(command)
    def run(**given: Any) -> None:
        built = {name: _build(kind, given) for name, kind in groups.items()}
        command(**given, **built)

    # typer reads the signature and annotations; through __wrapped__ it would find the original command's.
    vars(run).update(__signature__=Signature(flat))
    run.__annotations__ = {one.name: one.annotation for one in flat}
    del vars(run)["__wrapped__"]
    return run


def _build(group: Any, given: dict[str, Any]) -> Any:
    """Build the dataclass from its fields, which are removed from `given`."""
    return group(**{one.name: given.pop(one.name) for one in fields(group)})


def _fields(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=field.default if field.default_factory is MISSING else field.default_factory(),
            annotation=annotation(field.name, hints[field.name]),
        )
        for field in fields(group)
    ]
