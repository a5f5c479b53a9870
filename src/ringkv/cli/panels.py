"""Order of --help: common options first, then panels of one command, and the less common options at the end."""

from collections.abc import Iterable
from copy import copy
from inspect import Parameter
from typing import Annotated

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
