"""The smallest budget that a policy accepts. The engine, the planner and request validation share this rule."""

from bisect import bisect_left
from typing import NamedTuple

from ringkv.base.errors import BudgetTooSmall
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import parameters


def min_budget(choice: KVChoice) -> int:
    """Return the smallest budget that the policy accepts. It is searched, because a share of recent grows with it."""
    return 1 + bisect_left(range(1, 1 << 40), 0, key=lambda budget: _spare(choice, budget))


def check_budget(choice: KVChoice, budget: int) -> None:
    """Raise `BudgetTooSmall`, whose message states the minimum, if the policy does not accept this budget."""
    if _spare(choice, budget) >= 0:
        return
    needs = _needs(choice, budget)
    parts, remedies = (f"{need.entries} {need.part}" for need in needs), (need.setting for need in needs)
    raise BudgetTooSmall(
        f"kv_budget {budget} is less than {' and '.join(parts)}; "
        f"raise it to {min_budget(choice)}, or lower {' or '.join(filter(None, remedies))}"
    )


def _spare(choice: KVChoice, budget: int) -> int:
    """Return the entries left beside those that the policy requires; negative if the budget is too small."""
    return budget - sum(need.entries for need in _needs(choice, budget))


class _Need(NamedTuple):
    """Entries that a policy requires for a part of a slot. setting: lowers them; "" if none does."""

    entries: int
    part: str
    setting: str = ""


def _needs(choice: KVChoice, budget: int) -> tuple[_Need, ...]:
    recent = _Need(choice.recent_entries(budget), "recent", "kv_recent")
    sinks, selected = _Need(choice.sinks, "sinks", "kv_sinks"), _Need(1, "selected")
    window = _Need(choice.window, "in its window", "kv_window" if "window" in parameters(choice.select) else "")
    return {
        "full": (_Need(1, "token"),),
        "streaming": (sinks, _Need(1, "recent")),
        "snapkv": (window, recent._replace(part="for the output"), selected),
        "snapstream": (sinks, recent),
        "arkvale": (sinks, recent),
        "scissorhands": (sinks, recent, _Need(choice.review, "free", "kv_review"), selected),
    }[choice.policy]
