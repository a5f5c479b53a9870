"""What `ringkv bench` prints for people."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ringkv.cli.output import console, print_table
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.bench.compare import Comparison, Floors, Measured
    from ringkv.bench.probe import Ceiling
    from ringkv.bench.profile import Profile


class Limit(NamedTuple):
    """The best that the machine allows, and the share of it that was reached."""

    best: float
    share: float


class Figure(NamedTuple):
    """A row of the table: a field of `Measured`."""

    label: str
    field: str
    show: Callable[[float], str]
    more_is_better: bool = False
    limit: Callable[["Comparison", "Floors"], Limit] | None = None  # None for what is not a speed


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{1000 * value:,.1f}"


FIGURES = (
    Figure("entries a slot", "entries", _count),
    Figure("a slot", "slot_bytes", show_bytes),
    Figure("held, with staging", "held_bytes", show_bytes),
    Figure(
        "prefill, tok/s",
        "prefill_tokens_per_s",
        _count,
        more_is_better=True,
        limit=lambda run, floors: Limit(run.prompt_tokens / floors.prefill_s, floors.prefill_share),
    ),
    Figure(
        "first token, ms",
        "first_token_s",
        _milliseconds,
        limit=lambda run, floors: Limit(floors.prefill_s, floors.first_token_share),
    ),
    Figure(
        "decode, tok/s in all",
        "decode_tokens_per_s",
        _count,
        more_is_better=True,
        limit=lambda run, floors: Limit(run.slots / floors.step_s, floors.step_share),
    ),
    Figure("a step, ms", "step_s", _milliseconds, limit=lambda run, floors: Limit(floors.step_s, floors.step_share)),
    Figure("read a step", "step_bytes", show_bytes),
)


def print_comparison(found: "Comparison") -> None:
    full, small = found.full, found.compressed
    console().print(
        f"{found.model}: {found.slots} requests of {found.prompt_tokens:,} prompt and {found.output_tokens:,} output "
        f"tokens\n{found.dtype} on {found.device}, {found.threads} threads, graphs {found.graphs}, "
        f"torch {found.torch}; medians of {found.rounds} rounds, alternating\n",
        soft_wrap=True,
    )
    limits = ("limit ", "reached ") if found.ceiling else ()
    print_table(("", f"{full.cache} ", *limits, f"{small.cache} ", *limits, "ratio "), _rows(found))
    if found.ceiling:
        console().print("\n" + _machine(found.ceiling), soft_wrap=True)


def _rows(found: "Comparison") -> list[tuple[str, ...]]:
    return [_row(found, figure) for figure in FIGURES]


def _row(found: "Comparison", figure: Figure) -> tuple[str, ...]:
    """The ratio says how many times better the compressed cache is."""
    full, small = (getattr(side, figure.field) for side in (found.full, found.compressed))
    ratio = small / full if figure.more_is_better else full / small
    return (
        figure.label,
        figure.show(full),
        *_limit(found, found.full, figure),
        figure.show(small),
        *_limit(found, found.compressed, figure),
        f"{ratio:.2f}x",
    )


def _limit(found: "Comparison", side: "Measured", figure: Figure) -> tuple[str, ...]:
    """Two cells where the machine was probed, else none."""
    if side.floors is None:
        return ()
    if figure.limit is None:
        return ("", "")
    limit = figure.limit(found, side.floors)
    return (figure.show(limit.best), f"{limit.share:.0%}")


def _machine(ceiling: "Ceiling") -> str:
    """The best way of each probe."""
    lines = [_best(f"reading {show_bytes(size)}", ways, "B/s") for size, ways in ceiling.reading.items()]
    return "\n".join([*lines, _best("bfloat16 products", ceiling.matrix, "FLOP/s")])


def _best(what: str, ways: Mapping[str, float], unit: str) -> str:
    name, rate = max(ways.items(), key=lambda way: way[1])
    shown = show_bytes(rate).removesuffix("B")
    return f"{what}: {shown}{unit} ({name})"


def print_profile(found: "Profile") -> None:
    for phase in found.phases:
        rows = [
            (one.name, f"{one.calls:,}", f"{1000 * one.seconds:,.1f}", f"{one.share:.0%}") for one in phase.operators
        ]
        title = f"{phase.name}, {1000 * phase.seconds:,.1f} ms"
        print_table(("", "calls ", "ms ", "share "), rows, title)
        console().print()
    console().print(f"trace: {found.trace}", soft_wrap=True)
