"""From a prompt's length and a budget to a slot's Layout: the four policies, as settings of one mechanism.

n prompt tokens, S sinks, K selected, R recent, C budget, W window. No torch.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from ringkv.base.budgets import check_budget
from ringkv.base.cache_spec import LayerGroup
from ringkv.base.errors import BudgetTooSmall, InvalidRequest, PromptTooLong
from ringkv.base.kv import KVChoice, Layout, Layouts, TokenSpan
from ringkv.cache.protect import end, protected, tokens


def layouts(choice: KVChoice, n: int, capacity: int, groups: Sequence[LayerGroup]) -> Layouts:
    """Of each group of layers: what `choice` gives it, or a ring of exactly its sliding window.

    Raises what `layout` raises.
    """
    return tuple(layout(choice, n, capacity) if group.window is None else sliding(group.window, n) for group in groups)


def sliding(window: int, n: int) -> Layout:
    """A ring that loses nothing: it holds what a layer with such a sliding window sees."""
    return Layout(n, sinks=0, selected=0, recent=min(n, window), protected=0, base=0, ring=window, wraps=True)


class Rule(Protocol):
    def __call__(self, choice: KVChoice, n: int, budget: int) -> Layout: ...


def layout(choice: KVChoice, n: int, capacity: int) -> Layout:
    """The slot that a prompt of n tokens gets under `choice`, in a slot of `capacity` entries.

    Raises BudgetTooSmall when sinks, recent tokens, the window or what is protected do not fit into the budget;
    PromptTooLong when a policy that evicts nothing cannot hold the prompt; InvalidRequest for a budget over the
    capacity.
    """
    budget = capacity if choice.budget is None else choice.budget
    if budget > capacity:
        raise InvalidRequest(
            f"kv_budget {budget} is over the {capacity} entries of a slot; ask for less, or start with a larger budget",
            "kv_budget",
        )
    check_budget(choice, budget)
    return _RULES[choice.policy](choice, n, budget)


def _full(choice: KVChoice, n: int, budget: int) -> Layout:
    """Everything, until the budget is full."""
    if n > budget:
        raise PromptTooLong(
            f"the full cache holds {budget:,} tokens and the prompt has {n:,}; "
            "raise the budget, or choose kv_policy snapstream, which compresses"
        )
    return Layout(n, sinks=0, selected=0, recent=n, protected=0, base=0, ring=budget, wraps=False)


def _snapkv(choice: KVChoice, n: int, budget: int) -> Layout:
    """SnapKV as published: K chosen tokens and the window, then appending without a ring."""
    room = choice.recent_entries(budget)  # what the published form leaves to the output
    kept = budget - room
    if n <= kept:
        return Layout(n, sinks=n, selected=0, recent=0, protected=n, base=n, ring=budget - n, wraps=False)
    selected = kept - choice.window
    _refuse_too_many(tokens(protected(choice.protect, n - choice.window)), selected, budget)
    return Layout(n, 0, selected, recent=choice.window, protected=kept, base=n, ring=room, wraps=False)


def _streaming(choice: KVChoice, n: int, budget: int) -> Layout:
    """StreamingLLM: sinks, what is protected, and all the rest a ring."""
    spans = protected(choice.protect, n)
    held = choice.sinks + tokens(spans, choice.sinks)
    if held >= budget:
        raise BudgetTooSmall(
            f"kv_budget {budget:,} is less than {held:,} sinks and protected tokens and 1 recent; "
            f"raise it to {held + 1:,}, or protect less"
        )
    return _ring(choice, n, spans, budget - held, budget)


def _snapstream(choice: KVChoice, n: int, budget: int) -> Layout:
    """SnapStream: sinks, chosen tokens, and a ring of recent ones."""
    return _ring(choice, n, protected(choice.protect, n), choice.recent_entries(budget), budget)


def _ring(choice: KVChoice, n: int, spans: tuple[TokenSpan, ...], recent: int, budget: int) -> Layout:
    sinks, last = choice.sinks, end(spans)
    selected = budget - sinks - recent
    if n > budget:
        _refuse_too_many(tokens(spans, sinks), selected, budget)
        # What the ring holds is overwritten: where something after `n - recent` is protected, it begins after that.
        held = min(recent, n - last)
        base = sinks if held == recent else n - held
        return Layout(n, sinks, selected, held, protected=sinks + selected, base=base, ring=recent, wraps=True)
    if choice.elastic:
        held = max(sinks, min(n, sinks + selected), last)
        return _whole(n, held, base=held, ring=budget - held, budget=budget)
    if n <= sinks + recent:
        held = max(sinks, last)
        return _whole(n, held, base=held, ring=sinks + recent - held or budget - held, budget=budget)
    held = max(n - recent, last)
    return _whole(n, held, base=sinks if held == n - recent else held, ring=min(recent, budget - held), budget=budget)


def _whole(n: int, held: int, base: int, ring: int, budget: int) -> Layout:
    """The whole prompt, of which `held` tokens or entries are never overwritten."""
    if ring < 1:
        raise BudgetTooSmall(
            f"kv_protect ends at token {held:,} and leaves no ring in kv_budget {budget:,}; raise it above {held:,}"
        )
    head = min(n, held)
    return Layout(n, head, 0, n - head, held, base=base, ring=ring, wraps=True)


def _refuse_too_many(wanted: int, selected: int, budget: int) -> None:
    if wanted > selected:
        raise BudgetTooSmall(
            f"kv_protect names {wanted:,} tokens and kv_budget {budget:,} leaves {selected:,} entries to choose for; "
            "protect less, or raise the budget"
        )


_RULES: dict[str, Callable[[KVChoice, int, int], Layout]] = {
    "full": _full,
    "streaming": _streaming,
    "snapkv": _snapkv,
    "snapstream": _snapstream,
}
