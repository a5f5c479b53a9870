"""deployments: the slots of DeepSeek-R1 that the planner finds for several machines, beside the paper's batches."""

from collections.abc import Iterator, Sequence

from bench.results import table
from ringkv.plan.divided_slots import CacheSlots, Machine, divided_slots
from ringkv.plan.shapes import known
from ringkv.plan.units import show_bytes

MODEL = "deepseek-r1"
GB, RESERVE = 10**9, 1 << 30
PAPERS = "16 x 64 GB"
MACHINES = {  # by name: the ranks, and for how many of the paper's contexts they are shown
    PAPERS: (Machine(16, 64 * GB, RESERVE), 3),
    "16 H100, 80 GB": (Machine(16, 80 * GB, RESERVE), 1),
    "8 H100, 80 GB": (Machine(8, 80 * GB, RESERVE), 1),
    "2 x 512 GB, int8": (Machine(2, 512 * GB, RESERVE, "int8"), 1),
}
HEAD = ("machine", "context", "weights", "staging", "slot", "slots", "paper's", "tok/s")


def deployments() -> str:
    """Return the table. Figures with a slash are of the full and of the compressed cache."""
    return table(HEAD, list(_rows()))


def _rows() -> Iterator[tuple[str, ...]]:
    for name, (machine, contexts) in MACHINES.items():
        for one in divided_slots(known(MODEL), machine)[:contexts]:
            sizes = show_bytes(one.weight_bytes), show_bytes(one.staging_bytes)
            papers = _papers(one.caches) if name == PAPERS else ("", "")
            yield name, f"{one.tokens // 1024}k", *sizes, *_ours(one.caches), *papers


def _ours(caches: Sequence[CacheSlots]) -> tuple[str, str]:
    size = "/".join(f"{one.slot_bytes / GB:.3g}" for one in caches)
    return f"{size} GB", "/".join(f"{one.slots}" for one in caches)


def _papers(caches: Sequence[CacheSlots]) -> Iterator[str]:
    batches = [one.paper for one in caches if one.paper]
    yield "/".join(f"{batch.slots}" for batch in batches)
    yield "/".join(f"{batch.rate:,}" for batch in batches)
