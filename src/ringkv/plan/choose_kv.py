"""Turns options into a KVChoice with a budget in entries that can serve every prompt."""

from dataclasses import replace

from ringkv.base.budgets import check_budget
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.plan.checks import at_least
from ringkv.plan.kv_settings import AT_START, DEFAULT_BUDGET, PER_REQUEST, changed
from ringkv.plan.options import Options
from ringkv.plan.units import parse_ratio

DEFAULT_OUTPUT = 1024


def choose_kv(options: Options, prompt_tokens: int, context: int) -> KVChoice:
    """Return the choice for prompts of up to `prompt_tokens`. A budget above the context is lowered to the context.

    Raises `InvalidRequest` naming the option at fault, `BudgetTooSmall` with the smallest valid budget.
    """
    choice = settings(options)
    budget = min(context, _budget(options, choice.policy, prompt_tokens))
    check_budget(choice, budget)
    return replace(choice, budget=budget)


def settings(options: Options) -> KVChoice:
    """Return the choice without its budget. Raises `InvalidRequest` naming the option at fault."""
    given = {name: getattr(options, name) for name in AT_START if name in PER_REQUEST and name != "kv_budget"}
    return changed(KVChoice(), {name: value for name, value in given.items() if value is not None})


def _budget(options: Options, policy: str, prompt_tokens: int) -> int:
    if options.kv_budget is not None and options.kv_compression is not None:
        raise InvalidRequest(
            f"kv_budget {options.kv_budget} and kv_compression {options.kv_compression} both set the budget; "
            "leave one out",
            "kv_compression",
        )
    if options.kv_budget is not None:
        return at_least(1, "kv_budget", options.kv_budget, DEFAULT_BUDGET)
    if policy == "full":
        return _full_budget(options, prompt_tokens)
    if options.kv_compression is not None:
        return max(1, int(prompt_tokens / parse_ratio(options.kv_compression)))
    return DEFAULT_BUDGET


def paged_entries(options: Options, prompt_tokens: int, context: int, page: int) -> int:
    """Return the entries of a slot in pages, which holds every token."""
    output = at_least(1, "output_tokens", options.output_tokens, DEFAULT_OUTPUT)
    return whole_pages(min(context, prompt_tokens + output), page)


def whole_pages(tokens: int, page: int) -> int:
    """Return the entries of the pages that so many tokens take."""
    return -(-tokens // page) * page


def _full_budget(options: Options, prompt_tokens: int) -> int:
    if options.kv_compression is not None:
        raise InvalidRequest(
            "policy full keeps every token, so kv_compression does not apply; leave it out or choose snapstream",
            "kv_compression",
        )
    return prompt_tokens + at_least(1, "output_tokens", options.output_tokens, DEFAULT_OUTPUT)
