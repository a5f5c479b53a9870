"""deployments: the slots of DeepSeek-R1 that the planner finds for several machines, beside the paper's batches."""

from collections.abc import Iterator

from bench.results import table
from ringkv.plan.divided_slots import DividedSlots, Machine, divided_slots
from ringkv.plan.shapes import known
from ringkv.plan.units import show_bytes

MODEL = "deepseek-r1"
GB, RESERVE = 10**9, 1 << 30
OF_PAPER = "16 sockets, 64 GB"
MACHINES = {  # by name: the ranks, and for how many of the paper's contexts they are shown
    OF_PAPER: (Machine(16, 64 * GB, RESERVE), 3),
    "16 H100, 80 GB": (Machine(16, 80 * GB, RESERVE), 1),
    "8 H100, 80 GB": (Machine(8, 80 * GB, RESERVE), 1),
    "2 sockets, 512 GB, int8": (Machine(2, 512 * GB, RESERVE, "int8"), 1),
}
HEAD = ("machine", "context", "weights", "staging", "slot: full, 4x", "slots: full, 4x", "paper's", "paper's tok/s")


def deployments() -> str:
    return table(HEAD, list(_rows()))


def _rows() -> Iterator[tuple[str, ...]]:
    for name, (machine, contexts) in MACHINES.items():
        for one in divided_slots(known(MODEL), machine)[:contexts]:
            yield (
                name,
                f"{one.tokens // 1024}k",
                *_bytes(one),
                _slots(one),
                *(_paper(one) if name == OF_PAPER else ("", "")),
            )


def _bytes(one: DividedSlots) -> tuple[str, ...]:
    slots = ", ".join(map(show_bytes, (one.full_slot_bytes, one.compressed_slot_bytes)))
    return show_bytes(one.weight_bytes), show_bytes(one.staging_bytes), slots


def _slots(one: DividedSlots) -> str:
    return f"{one.full}, {one.compressed}" if one.compressed else "none fit"


def _paper(one: DividedSlots) -> tuple[str, str]:
    paper = one.paper
    assert paper is not None, "the paper has no such deployment"
    return f"{paper.full}, {paper.compressed}", f"{paper.full_rate:,}, {paper.compressed_rate:,}"
