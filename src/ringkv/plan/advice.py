"""advise: what else to request so that more slots fit, as commands with the slots that they give."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.plan.report import PlanRequest, report
from ringkv.plan.shapes import Shape
from ringkv.plan.units import show_bytes

CHANGES: Mapping[str, Any] = {"prefill_workspace": 4096, "kv_format": "int8", "weights": "int4"}
DOUBLED = 7  # how often the number of ranks is doubled, at most, and one more
ROUNDED_UP = 1.005  # a size of three digits is at most this much too small
_FLAGS = {"prompt_tokens": "--max-prompt"}


@dataclass(frozen=True)
class Advice:
    """command: of `ringkv plan`. slots: that fit with it, of the compressed cache."""

    command: str
    slots: int


def advise(model: str, shape: Shape, request: PlanRequest) -> list[Advice]:
    """Return what gives more slots: a workspace, slots in 8 bits, weights in 4 bits, all of them, and more ranks.

    If no slot fits, the last advice is a memory that one fits into.
    """
    before = _slots(shape, request)
    ranks = request.tensor_parallel or 1
    more_ranks = (replace(request, tensor_parallel=ranks << doubled) for doubled in range(1, DOUBLED))
    ranked = next((each for each in more_ranks if _slots(shape, each) > before), request)
    changes = [*_changes(request), ranked]
    if not before:
        alone = report(shape, replace(request, memory=None)).rows[-1].total_bytes
        changes.append(replace(request, memory=show_bytes(ROUNDED_UP * alone).replace(" ", "")))
    each = ((change, _slots(shape, change)) for change in changes)
    return [Advice(_command(model, change), slots) for change, slots in each if slots > before]


def _changes(request: PlanRequest) -> Iterator[PlanRequest]:
    """Yield the request with each change to what it leaves open, then with all of them."""
    changes = {name: value for name, value in CHANGES.items() if getattr(request, name) is None}
    for name, value in changes.items():
        yield replace(request, **{name: value})
    if len(changes) > 1:
        yield replace(request, **changes)


def _slots(shape: Shape, request: PlanRequest) -> int:
    """Return how many slots of the compressed cache fit; 0 if the model cannot have what is requested."""
    try:
        return report(shape, request).rows[-1].slots or 0
    except InvalidRequest:
        return 0


def _command(model: str, request: PlanRequest) -> str:
    flags = [
        text
        for name, value in vars(request).items()
        if value is not None
        for text in (_FLAGS.get(name, "--" + name.replace("_", "-")), str(value))
    ]
    return shlex.join(("ringkv", "plan", model, *flags))
