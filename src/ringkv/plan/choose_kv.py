"""From options to a KVChoice whose budget is a number, and that every prompt can be served under."""

from collections.abc import Mapping
from dataclasses import replace

from ringkv.base.errors import BudgetTooSmall, InvalidRequest
from ringkv.base.kv import POLICIES, SELECTORS, TURNS, KVChoice
from ringkv.plan.checks import at_least, one_of
from ringkv.plan.options import Options
from ringkv.plan.units import parse_ratio, parse_share

DEFAULT_BUDGET = 2048
DEFAULT_OUTPUT = 1024


def choose_kv(options: Options, prompt_tokens: int, context: int) -> KVChoice:
    """The choice for prompts of up to `prompt_tokens`. A budget over the context is lowered to it: it holds everything.

    Raises `InvalidRequest` naming the option at fault, `BudgetTooSmall` when the policy would have nothing to choose.
    """
    choice = settings(options)
    choice = replace(choice, budget=min(context, _budget(options, choice.policy, prompt_tokens)))
    _refuse_small_budgets(choice)
    return choice


def settings(options: Options) -> KVChoice:
    """The choice without its budget. Raises `InvalidRequest` naming the option at fault."""
    usual = KVChoice()
    return KVChoice(
        policy=one_of(POLICIES, "kv_policy", options.kv_policy, usual.policy),
        sinks=at_least(0, "kv_sinks", options.kv_sinks, usual.sinks),
        recent=parse_share(usual.recent if options.kv_recent is None else options.kv_recent),
        window=at_least(1, "kv_window", options.kv_window, usual.window),
        kernel=_odd("kv_kernel", at_least(1, "kv_kernel", options.kv_kernel, usual.kernel)),
        pooling=one_of(("avg", "max"), "kv_pooling", options.kv_pooling, usual.pooling),
        groups=one_of(("mean", "max"), "kv_groups", options.kv_groups, usual.groups),
        domain=one_of(("row", "candidates"), "kv_domain", options.kv_domain, usual.domain),
        select=one_of(SELECTORS, "kv_select", options.kv_select, usual.select),
        elastic=usual.elastic if options.kv_elastic is None else options.kv_elastic,
        turns=one_of(TURNS, "kv_turns", options.kv_turns, usual.turns),
    )


def _budget(options: Options, policy: str, prompt_tokens: int) -> int:
    if options.kv_budget is not None and options.kv_compression is not None:
        raise InvalidRequest(
            f"kv_budget {options.kv_budget} and kv_compression {options.kv_compression} say the same thing twice; "
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


def _full_budget(options: Options, prompt_tokens: int) -> int:
    if options.kv_compression is not None:
        raise InvalidRequest(
            "policy full keeps every token, so kv_compression does not apply; leave it out or choose snapstream",
            "kv_compression",
        )
    return prompt_tokens + at_least(1, "output_tokens", options.output_tokens, DEFAULT_OUTPUT)


def _refuse_small_budgets(choice: KVChoice) -> None:
    budget = choice.budget or 0
    needs = _needs(choice, budget)[choice.policy]
    taken = sum(needs.values())
    if taken >= budget:
        parts = " and ".join(f"{count} {what}" for what, count in needs.items())
        raise BudgetTooSmall(
            f"kv_budget {budget} leaves policy {choice.policy} nothing to choose beside {parts}; "
            f"raise it above {taken}, or lower those"
        )


def _needs(choice: KVChoice, budget: int) -> Mapping[str, Mapping[str, int]]:
    """By policy: entries of the budget that are spoken for before any choice is made."""
    recent = choice.recent_entries(budget)
    return {
        "full": {},
        "streaming": {"sinks": choice.sinks},
        "snapkv": {"of its window": choice.window, "for the output (kv_recent)": recent},
        "snapstream": {"sinks": choice.sinks, "recent": recent},
    }


def _odd(name: str, value: int) -> int:
    if value % 2 == 0:
        raise InvalidRequest(f"{name} is {value}; it must be odd, so that each token is in the middle", name)
    return value
