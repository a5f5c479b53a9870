"""expert_costs: what each of N ranks holds, reads and exchanges of experts, under tensor and under expert parallel.

E experts, S slots that decode together.

p                = distinct_share          of the experts that some slot chooses
tensor parallel    E x p x expert / N      read by each rank in a decode step, on average
expert parallel    busiest x expert        a step waits for the rank with the most chosen experts; `busiest` is the mean
                                           of the largest of N binomials of E / N experts with probability p
exchanged          S x hidden x 4          bytes of the float32 sum after a layer's experts, the same under both; one
                                           rank exchanges nothing, and its read is E x p x expert
"""

from dataclasses import dataclass
from math import ceil, comb

from ringkv.plan.distinct_experts import distinct_share
from ringkv.plan.footprint import bits_of
from ringkv.plan.shapes import ExpertShape


@dataclass(frozen=True)
class ExpertCosts:
    """Bytes of one rank. tensor, expert: under tensor parallel, under expert parallel."""

    slots: int
    tensor_bytes: int  # of experts that the rank holds
    expert_bytes: int
    tensor_read: int  # by a decode step of `slots` slots
    expert_read: int
    exchanged: int  # in each layer with experts


def expert_costs(experts: ExpertShape, stored: str, ranks: int, slots: int) -> ExpertCosts:
    """Return the costs of the largest of so many ranks."""
    one = experts.elements * bits_of(stored).layers / 8 / experts.count  # of one expert, in all layers
    likely, most = distinct_share(experts.chosen, experts.count, slots), ceil(experts.count / ranks)
    return ExpertCosts(
        slots=slots,
        tensor_bytes=ceil(one * experts.count / ranks),
        expert_bytes=ceil(one * most),
        tensor_read=ceil(one * experts.count * likely / ranks),
        expert_read=ceil(one * busiest(most, likely, ranks)),
        exchanged=slots * experts.hidden * 4 if ranks > 1 else 0,
    )


def busiest(experts: int, likely: float, ranks: int) -> float:
    """Return the mean of the largest number of chosen experts that one of so many ranks has, of `experts` each."""
    total, below = 0.0, 0.0
    for n in range(experts):
        below += comb(experts, n) * likely**n * (1 - likely) ** (experts - n)
        total += 1 - min(1.0, below) ** ranks
    return total
