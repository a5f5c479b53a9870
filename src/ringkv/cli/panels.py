"""common_first: what most people need on the first screen of --help, all else in one panel at its end."""

from collections.abc import Iterable
from copy import copy
from inspect import Parameter
from typing import Annotated

LESS_COMMON = "Less common"
COMMON = frozenset(
    (
        "model",
        *("kv_policy", "kv_budget", "kv_compression"),
        *("prompt_tokens", "slots", "weights", "device"),
        *("max_tokens", "temperature", "top_p", "seed", "stop"),
    )
)


def common_first(shared: Iterable[Parameter]) -> list[Parameter]:
    """Options that several commands share, in the order of --help."""
    shared = list(shared)
    common = [one for one in shared if one.name in COMMON]
    return common + [_less_common(one) for one in shared if one.name not in COMMON]


def _less_common(one: Parameter) -> Parameter:
    """The same in the last panel."""
    option = copy(one.annotation.__metadata__[0])
    option.rich_help_panel = LESS_COMMON
    return one.replace(annotation=Annotated[one.annotation.__origin__, option])
