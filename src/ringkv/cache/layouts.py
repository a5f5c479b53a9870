"""Layouts: a slot's `Layout` from a prompt's length and a budget. The policies are settings of one mechanism.

n prompt tokens, S sinks, K selected, R recent, C budget, W window. No torch.
"""

from collections.abc import Callable, Mapping, Sequence

from ringkv.base.budgets import check_budget
from ringkv.base.cache_spec import LayerGroup
from ringkv.base.errors import BudgetTooSmall, InvalidRequest, PromptTooLong
from ringkv.base.kv import KVChoice, Layout, Layouts, TokenSpan
from ringkv.cache.protect import end, protected, tokens


def layouts(choice: KVChoice, n: int, capacity: int, groups: Sequence[LayerGroup]) -> Layouts:
    """Return each layer group's layout: that of `choice`, or a ring of exactly the group's sliding window.

    Raises what `layout` raises.
    """
    return tuple(
        _staggered(layout(choice, n, capacity), choice, len(group.layers))
        if group.window is None
        else sliding(group.window, n)
        for group in groups
    )


def _staggered(plan: Layout, choice: KVChoice, layers: int) -> Layout:
    """Return a layout whose reviews score a few of so many layers at a step, so that no step waits for all of them.

    Tokens that come after a layer's turn are not evicted. So they are recent ones, of which there may be few.
    """
    if not plan.review:
        return plan
    return plan._replace(layers=layers, steps=min(layers, plan.review, choice.recent_entries(plan.capacity) + 1))


def sliding(window: int, n: int) -> Layout:
    """Return a ring that holds all tokens that a layer with this sliding window attends to."""
    return Layout(n, sinks=0, selected=0, recent=min(n, window), protected=0, base=0, ring=window, wraps=True)


def layout(choice: KVChoice, n: int, capacity: int) -> Layout:
    """Return the layout of a prompt of n tokens under `choice`, in a slot of `capacity` entries.

    Raises BudgetTooSmall if sinks, recent tokens, the window or protected tokens do not fit into the budget;
    PromptTooLong if a policy that evicts nothing cannot hold the prompt; InvalidRequest for a budget over the
    capacity.
    """
    budget = capacity if choice.budget is None else choice.budget
    if budget > capacity:
        raise InvalidRequest(
            f"kv_budget {budget} is over the {capacity} entries of a slot; request less, or start with a larger budget",
            "kv_budget",
        )
    check_budget(choice, budget)
    return _RULES[choice.policy](choice, n, capacity if choice.reads_pages else budget)


def _full(choice: KVChoice, n: int, budget: int) -> Layout:
    """Keep every token, until the budget is full."""
    if n > budget:
        # Without a budget of its own, the choice has all of a slot, whose size only a new start changes.
        holder, larger = (
            ("kv_budget", "raise it or leave it out") if choice.budget else ("a slot", "start with kv_policy full")
        )
        raise PromptTooLong(
            f"kv_policy full keeps all {n:,} tokens of the prompt, and {holder} holds {budget:,}; "
            f"{larger}, or choose kv_policy snapstream, which compresses"
        )
    return Layout(n, sinks=0, selected=0, recent=n, protected=0, base=0, ring=budget, wraps=False)


def _arkvale(choice: KVChoice, n: int, capacity: int) -> Layout:
    """ArkVale: keep every token, and read some pages."""
    if n > capacity:
        raise PromptTooLong(
            f"a slot holds {capacity:,} tokens and the prompt has {n:,}; start with a larger prompt_tokens, or choose "
            "kv_policy snapstream, which compresses"
        )
    read = capacity if choice.budget is None else choice.budget
    newest = choice.recent_entries(read)
    return Layout(n, 0, 0, n, 0, 0, capacity, wraps=False, read=read, leading=choice.sinks, newest=newest)


def _snapkv(choice: KVChoice, n: int, budget: int) -> Layout:
    """SnapKV as published: K selected tokens and the window. Generated tokens are appended until the slot is full."""
    output = choice.recent_entries(budget)  # entries for generated tokens
    kept = budget - output
    if n <= kept:
        return Layout(n, sinks=n, selected=0, recent=0, protected=n, base=n, ring=budget - n, wraps=False)
    selected = kept - choice.window
    _refuse_too_many(tokens(protected(choice.protect, n - choice.window)), selected, budget)
    return Layout(n, 0, selected, recent=choice.window, protected=kept, base=n, ring=output, wraps=False)


def _streaming(choice: KVChoice, n: int, budget: int) -> Layout:
    """StreamingLLM: sinks, protected tokens, and a ring of all other entries."""
    spans = protected(choice.protect, n)
    fixed = choice.sinks + tokens(spans, choice.sinks)
    if fixed >= budget:
        raise BudgetTooSmall(
            f"kv_budget {budget:,} is less than {fixed:,} sinks and protected tokens and 1 recent; "
            f"raise it to {fixed + 1:,}, or protect less"
        )
    return _ring(choice, n, spans, budget - fixed, budget)


def _snapstream(choice: KVChoice, n: int, budget: int) -> Layout:
    """SnapStream: sinks, selected tokens, and a ring of recent ones."""
    return _ring(choice, n, protected(choice.protect, n), choice.recent_entries(budget), budget)


def _ring(choice: KVChoice, n: int, spans: tuple[TokenSpan, ...], recent: int, budget: int) -> Layout:
    sinks, protected_end = choice.sinks, end(spans)
    selected = budget - sinks - recent
    if n > budget:
        _refuse_too_many(tokens(spans, sinks), selected, budget)
        # Ring entries are overwritten: if a token after `n - recent` is protected, the ring begins after it.
        in_ring = min(recent, n - protected_end)
        base = sinks if in_ring == recent else n - in_ring
        return Layout(n, sinks, selected, in_ring, protected=sinks + selected, base=base, ring=recent, wraps=True)
    if choice.elastic:
        fixed = max(sinks, min(n, sinks + selected), protected_end)
        return _whole(n, fixed, base=fixed, ring=budget - fixed, budget=budget)
    if n <= sinks + recent:
        fixed = max(sinks, protected_end)
        return _whole(n, fixed, base=fixed, ring=min(recent, budget - fixed), budget=budget)
    fixed = max(n - recent, protected_end)
    base = sinks if fixed == n - recent else fixed
    return _whole(n, fixed, base=base, ring=min(recent, budget - fixed), budget=budget)


def _whole(n: int, fixed: int, base: int, ring: int, budget: int) -> Layout:
    """Keep the whole prompt; the first `fixed` entries are never overwritten."""
    if ring < 1:
        raise BudgetTooSmall(
            f"kv_protect ends at token {fixed:,} and leaves no ring in kv_budget {budget:,}; raise it above {fixed:,}"
        )
    leading = min(n, fixed)
    return Layout(n, leading, 0, n - leading, fixed, base=base, ring=ring, wraps=True)


def _refuse_too_many(protected_tokens: int, selected: int, budget: int) -> None:
    if protected_tokens > selected:
        raise BudgetTooSmall(
            f"kv_protect names {protected_tokens:,} tokens and kv_budget {budget:,} leaves {selected:,} entries for "
            "selected tokens; protect less, or raise the budget"
        )


def _scissorhands(choice: KVChoice, n: int, budget: int) -> Layout:
    """Scissorhands: what the prompt selects, then N free entries before the first review."""
    review, recent = choice.review, choice.recent_entries(budget)
    kept = budget - review
    selected = kept - choice.sinks - recent
    _refuse_too_many(tokens(protected(choice.protect, n), choice.sinks), selected, budget)
    if n <= kept:
        return Layout(n, n, 0, 0, n, base=n, ring=budget - n, wraps=True, review=review)
    return Layout(n, choice.sinks, selected, recent, kept, base=n, ring=review, wraps=True, review=review)


_RULES: Mapping[str, Callable[[KVChoice, int, int], Layout]] = {
    "full": _full,
    "streaming": _streaming,
    "snapkv": _snapkv,
    "snapstream": _snapstream,
    "arkvale": _arkvale,
    "scissorhands": _scissorhands,
}
