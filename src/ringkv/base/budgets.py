"""The smallest budget that a policy accepts. The engine, the planner and request validation share this rule."""

from bisect import bisect_left
from collections.abc import Callable, Mapping

from ringkv.base.errors import BudgetTooSmall
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import parameters


def min_budget(choice: KVChoice) -> int:
    """Return the smallest budget that the policy accepts. It is searched, because a share of recent grows with it."""
    high = 1
    while _spare(choice, high) < 0:
        high *= 2
    return 1 + bisect_left(range(1, high + 1), 0, key=lambda budget: _spare(choice, budget))


def check_budget(choice: KVChoice, budget: int) -> None:
    """Raise `BudgetTooSmall`, whose message states the minimum, if the policy does not accept this budget."""
    if _spare(choice, budget) >= 0:
        return
    parts, remedies = _NEEDS[choice.policy](choice, budget)
    raise BudgetTooSmall(
        f"kv_budget {budget} is less than {' and '.join(f'{count} {what}' for what, count in parts.items())}; "
        f"raise it to {min_budget(choice)}, or lower {' or '.join(remedies)}"
    )


def _spare(choice: KVChoice, budget: int) -> int:
    """Return the entries left beside those that the policy requires; negative if the budget is too small."""
    return budget - sum(_NEEDS[choice.policy](choice, budget)[0].values())


Needs = tuple[Mapping[str, int], tuple[str, ...]]
"""The entries that each part requires, by name, and the settings that lower them."""


def _full(choice: KVChoice, budget: int) -> Needs:
    return {"token": 1}, ()


def _streaming(choice: KVChoice, budget: int) -> Needs:
    return {"sinks": choice.sinks, "recent": 1}, ("kv_sinks",)


def _snapkv(choice: KVChoice, budget: int) -> Needs:
    window = ("kv_window",) if "window" in parameters(choice.select) else ()
    parts = {"in its window": choice.window, "for the output": choice.recent_entries(budget), "selected": 1}
    return parts, (*window, "kv_recent")


def _snapstream(choice: KVChoice, budget: int) -> Needs:
    return {"sinks": choice.sinks, "recent": choice.recent_entries(budget)}, ("kv_sinks", "kv_recent")


def _scissorhands(choice: KVChoice, budget: int) -> Needs:
    parts = {"sinks": choice.sinks, "recent": choice.recent_entries(budget), "free": choice.review, "selected": 1}
    return parts, ("kv_sinks", "kv_recent", "kv_review")


_NEEDS: dict[str, Callable[[KVChoice, int], Needs]] = {
    "full": _full,
    "streaming": _streaming,
    "snapkv": _snapkv,
    "snapstream": _snapstream,
    "arkvale": _snapstream,
    "scissorhands": _scissorhands,
}
