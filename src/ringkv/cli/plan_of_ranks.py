"""plan_of_ranks: tables of `ringkv plan` for experts, of one rank or several, and for slots that ranks divide."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ringkv.cli.output import console, print_table
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.plan.divided_slots import DividedSlots
    from ringkv.plan.expert_costs import ExpertCosts
    from ringkv.plan.report import Report


def print_ranks(found: "Report") -> None:
    if found.experts:
        _print_experts(found.experts, found.tensor_parallel)
    if found.divided:
        _print_divided(found)


def _print_experts(costs: "ExpertCosts", ranks: int) -> None:
    console().print()
    read = f"read per step of {costs.slots:,} "
    if ranks == 1:
        print_table(("", "bytes ", read), [("experts", show_bytes(costs.tensor_bytes), show_bytes(costs.tensor_read))])
        return
    head = ("experts of a rank", "bytes ", read, "exchanged per layer ")
    exchanged = show_bytes(costs.exchanged)
    print_table(
        head,
        [
            ("tensor parallel", show_bytes(costs.tensor_bytes), show_bytes(costs.tensor_read), exchanged),
            ("expert parallel, busiest", show_bytes(costs.expert_bytes), show_bytes(costs.expert_read), exchanged),
        ],
    )


def _print_divided(found: "Report") -> None:
    ranks, memory = found.tensor_parallel, show_bytes(found.memory or 0)
    console().print(
        f"\nlatents with slots divided among {ranks} ranks: {ranks} x floor(({memory} - reserve - weights - staging) / "
        f"(slot + {ranks} x sampler)) slots",
        soft_wrap=True,
    )
    head = ("context", "entries ", "weights ", "staging ", "slot ", "slots ")
    papers = ("paper's slots ", "paper's tok/s ") if found.divided[0].caches[0].paper else ()
    print_table((*head, *papers), [row for one in found.divided for row in _divided_rows(one)])


def _divided_rows(one: "DividedSlots") -> "Iterator[tuple[str, ...]]":
    """Yield a row for the full cache, and one for the compressed cache."""
    for cache in one.caches:
        sizes = map(show_bytes, (one.weight_bytes, one.staging_bytes, cache.slot_bytes))
        papers = (f"{figure:,}" for figure in cache.paper or ())
        yield f"{one.tokens:,}", f"{cache.entries:,}", *sizes, f"{cache.slots:,}", *papers
