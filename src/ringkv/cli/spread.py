"""Options declared once in a dataclass and shared by several commands.

@spread
def chat(engine: EngineOptions, sampling: Sampling) -> None: ...     # ringkv chat --slots 2 --top-p 0.9
"""

import inspect
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, get_type_hints

from ringkv.cli.settings import annotation

LESS_COMMON = "Less common"
SHARED = frozenset(("Model", "Machine", "Sampling", "Cache"))  # panels whose less common options are apart
COMMON = frozenset(
    (
        "model",
        *("kv_policy", "kv_budget", "kv_compression"),
        *("prompt_tokens", "slots", "weights", "device"),
        *("max_tokens", "temperature", "top_p", "seed", "stop"),
    )
)


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


def common_first(shared: Iterable[Parameter]) -> list[Parameter]:
    """Return the shared options in the order of --help."""
    shared = list(shared)
    common = [one for one in shared if one.name in COMMON]
    others = [one for one in shared if one.name not in COMMON]
    of_one_command = [one for one in others if _panel(one) not in SHARED]
    return common + of_one_command + [_less_common(one) for one in others if _panel(one) in SHARED]


def _panel(one: Parameter) -> str | None:
    panel: str | None = one.annotation.__metadata__[0].rich_help_panel
    return panel


def _less_common(one: Parameter) -> Parameter:
    """Return the option moved to a panel at the end."""
    option = copy(one.annotation.__metadata__[0])
    option.rich_help_panel = f"{LESS_COMMON}: {str(_panel(one)).lower()}"
    return one.replace(annotation=Annotated[one.annotation.__origin__, option])
