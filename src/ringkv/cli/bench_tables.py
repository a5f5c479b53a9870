"""Tables that `ringkv bench` prints."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from ringkv.cli.output import console, print_table, toned
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.bench.compare import Comparison, Floors, Measured
    from ringkv.bench.probe import Ceiling
    from ringkv.bench.profile import Profile


class HardwareLimit(NamedTuple):
    """The best speed or time that the machine allows, and the share of it that was reached."""

    best: float
    share: float


class MetricRow(NamedTuple):
    """A row of the table; `field` is a field of `Measured`."""

    label: str
    field: str
    show: Callable[[float], str]
    more_is_better: bool = False
    limit: Callable[["Comparison", "Floors"], HardwareLimit] | None = None  # None if it is not a speed


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{1000 * value:,.1f}"


ROWS = (
    MetricRow("entries per slot", "entries", _count),
    MetricRow("slot size", "slot_bytes", show_bytes),
    MetricRow("cache with staging", "held_bytes", show_bytes),
    MetricRow(
        "prefill, tok/s",
        "prefill_tokens_per_s",
        _count,
        more_is_better=True,
        limit=lambda run, floors: HardwareLimit(run.prompt_tokens / floors.prefill_s, floors.prefill_share),
    ),
    MetricRow(
        "first token, ms",
        "first_token_s",
        _milliseconds,
        limit=lambda run, floors: HardwareLimit(floors.prefill_s, floors.first_token_share),
    ),
    MetricRow(
        "decode, tok/s total",
        "decode_tokens_per_s",
        _count,
        more_is_better=True,
        limit=lambda run, floors: HardwareLimit(run.slots / floors.step_s, floors.step_share),
    ),
    MetricRow(
        "step, ms", "step_s", _milliseconds, limit=lambda run, floors: HardwareLimit(floors.step_s, floors.step_share)
    ),
    MetricRow("read per step", "step_bytes", show_bytes),
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


def _rows(found: "Comparison") -> list[tuple[str | Text, ...]]:
    return [_row(found, metric) for metric in ROWS]


def _row(found: "Comparison", metric: MetricRow) -> tuple[str | Text, ...]:
    """Return the cells of a row. The ratio is above 1, in the colour of "better", if the compressed cache is better."""
    full, small = (getattr(side, metric.field) for side in (found.full, found.compressed))
    ratio = small / full if metric.more_is_better else full / small
    return (
        metric.label,
        metric.show(full),
        *_limit(found, found.full, metric),
        metric.show(small),
        *_limit(found, found.compressed, metric),
        toned(f"{ratio:.2f}x", _tone(ratio)),
    )


def _tone(ratio: float) -> str:
    shown = round(ratio, 2)
    return "better" if shown > 1 else "worse" if shown < 1 else "noise"


def _limit(found: "Comparison", side: "Measured", metric: MetricRow) -> tuple[str, ...]:
    """Return two cells if the machine was probed, else none."""
    if side.floors is None:
        return ()
    if metric.limit is None:
        return ("", "")
    limit = metric.limit(found, side.floors)
    return (metric.show(limit.best), f"{limit.share:.0%}")


def _machine(ceiling: "Ceiling") -> str:
    """Return the fastest result of each probe, one per line."""
    lines = [_best(f"reading {show_bytes(size)}", rates, "B/s") for size, rates in ceiling.reading.items()]
    return "\n".join([*lines, _best("bfloat16 matrix products", ceiling.matrix, "FLOP/s")])


def _best(what: str, rates: Mapping[str, float], unit: str) -> str:
    name, rate = max(rates.items(), key=lambda item: item[1])
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
