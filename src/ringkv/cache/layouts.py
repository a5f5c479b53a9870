"""From a prompt's length and a budget to a slot's Layout: the four policies, as settings of one mechanism.

n prompt tokens, S sinks, K selected, R recent, C budget, W window. No torch.
"""

from collections.abc import Callable
from typing import Protocol

from ringkv.base.errors import BudgetTooSmall, InvalidRequest, PromptTooLong
from ringkv.base.kv import POLICIES, KVChoice, Layout


class Rule(Protocol):
    def __call__(self, choice: KVChoice, n: int, budget: int) -> Layout: ...


def layout(choice: KVChoice, n: int, capacity: int) -> Layout:
    """The slot that a prompt of n tokens gets under `choice`, in a slot of `capacity` entries.

    Raises BudgetTooSmall when sinks, recent tokens or the window do not fit into the budget; PromptTooLong when a
    policy that evicts nothing cannot hold the prompt; InvalidRequest for an unknown policy, or a budget over the
    capacity.
    """
    if choice.policy not in _RULES:
        raise InvalidRequest(
            f"kv_policy {choice.policy!r} is unknown; choose one of {', '.join(POLICIES)}", "kv_policy"
        )
    budget = capacity if choice.budget is None else choice.budget
    if budget > capacity:
        raise InvalidRequest(
            f"kv_budget {budget} is over the {capacity} entries of a slot; ask for less, or start with a larger budget",
            "kv_budget",
        )
    return _RULES[choice.policy](choice, n, budget)


def _full(choice: KVChoice, n: int, budget: int) -> Layout:
    """Everything, until the budget is full."""
    if n > budget:
        raise PromptTooLong(
            f"the full cache holds {budget:,} tokens and the prompt has {n:,}; "
            "raise the budget, or choose kv_policy snapstream, which compresses"
        )
    return Layout(n, head=0, picked=0, tail=n, protected=0, base=0, ring=budget, wraps=False)


def _snapkv(choice: KVChoice, n: int, budget: int) -> Layout:
    """SnapKV as published: K chosen tokens and the window, then appending without a ring."""
    room = choice.recent_entries(budget)  # what the published form leaves to the output
    kept = budget - room
    if kept <= choice.window:
        raise BudgetTooSmall(
            f"kv_budget {budget} leaves {kept} entries beside {room} for the output, and snapkv needs more than its "
            f"window of {choice.window}; raise the budget or lower kv_window or kv_recent"
        )
    if n <= kept:
        return Layout(n, head=n, picked=0, tail=0, protected=n, base=n, ring=budget - n, wraps=False)
    picked = kept - choice.window
    return Layout(n, 0, picked, tail=choice.window, protected=kept, base=n, ring=room, wraps=False)


def _streaming(choice: KVChoice, n: int, budget: int) -> Layout:
    """StreamingLLM: sinks, and all the rest a ring."""
    return _ring(choice, n, choice.sinks, budget - choice.sinks, budget)


def _snapstream(choice: KVChoice, n: int, budget: int) -> Layout:
    """SnapStream: sinks, chosen tokens, and a ring of recent ones."""
    return _ring(choice, n, choice.sinks, choice.recent_entries(budget), budget)


def _ring(choice: KVChoice, n: int, sinks: int, recent: int, budget: int) -> Layout:
    selected = budget - sinks - recent
    if recent < 1 or selected < 0:
        raise BudgetTooSmall(
            f"kv_budget {budget} is less than {sinks} sinks and {max(recent, 1)} recent tokens; "
            f"raise it to {sinks + max(recent, 1)} or lower kv_sinks or kv_recent"
        )
    if n > budget:
        return Layout(n, sinks, selected, tail=recent, protected=sinks + selected, base=sinks, ring=recent, wraps=True)
    if choice.elastic:
        protected = max(sinks, min(n, sinks + selected))
        head = min(n, protected)
        return Layout(n, head, 0, n - head, protected, base=protected, ring=budget - protected, wraps=True)
    if n <= sinks + recent:
        head = min(n, sinks)
        return Layout(n, head, 0, n - head, protected=sinks, base=sinks, ring=recent, wraps=True)
    return Layout(n, n - recent, 0, recent, protected=n - recent, base=sinks, ring=recent, wraps=True)


_RULES: dict[str, Callable[[KVChoice, int, int], Layout]] = {
    "full": _full,
    "streaming": _streaming,
    "snapkv": _snapkv,
    "snapstream": _snapstream,
}
