"""Tables that `ringkv bench` prints."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from ringkv.cli.output import console, print_table, toned
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.bench.compare import Comparison, Floors, Measured


class MetricRow(NamedTuple):
    """A row of the table. field: of `Measured`. limit: the best value that the machine allows, and the share reached.

    None if it is not a speed.
    """

    label: str
    field: str
    show: Callable[[float], str]
    more_is_better: bool = False
    limit: Callable[["Comparison", "Floors"], tuple[float, float]] | None = None


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
        True,
        lambda run, floors: (run.prompt_tokens / floors.prefill_s, floors.prefill_share),
    ),
    MetricRow(
        "first token, ms",
        "first_token_s",
        _milliseconds,
        limit=lambda _, floors: (floors.prefill_s, floors.first_token_share),
    ),
    MetricRow(
        "decode, tok/s total",
        "decode_tokens_per_s",
        _count,
        True,
        lambda run, floors: (run.slots / floors.step_s, floors.step_share),
    ),
    MetricRow("step, ms", "step_s", _milliseconds, limit=lambda _, floors: (floors.step_s, floors.step_share)),
    MetricRow("read per step", "step_bytes", show_bytes),
)


def print_comparison(comparison: "Comparison") -> None:
    full, small = comparison.full, comparison.compressed
    console().print(
        f"{comparison.model}: {comparison.slots} requests of {comparison.prompt_tokens:,} prompt and "
        f"{comparison.output_tokens:,} output tokens\n{comparison.dtype} on {comparison.device}, "
        f"{comparison.threads} threads, graphs {comparison.graphs}, torch {comparison.torch}; "
        f"medians of {comparison.rounds} rounds, alternating\n",
        soft_wrap=True,
    )
    limits = ("limit ", "reached ") if comparison.ceiling else ()
    head = ("", f"{full.cache} ", *limits, f"{small.cache} ", *limits, "ratio ")
    print_table(head, [_row(comparison, metric) for metric in ROWS])
    if comparison.ceiling:
        reading = comparison.ceiling.reading.items()
        best = [_best(f"reading {show_bytes(size)}", rates, "B/s") for size, rates in reading]
        products = _best("bfloat16 matrix products", comparison.ceiling.matrix, "FLOP/s")
        console().print("\n" + "\n".join((*best, products)), soft_wrap=True)


def _row(comparison: "Comparison", metric: MetricRow) -> tuple[str | Text, ...]:
    """Return the cells of a row. The ratio is above 1, in the colour of "better", if the compressed cache is better."""
    full, small = (getattr(side, metric.field) for side in (comparison.full, comparison.compressed))
    ratio = round(small / full if metric.more_is_better else full / small, 2)
    tone = "better" if ratio > 1 else "worse" if ratio < 1 else "noise"
    of_full, of_small = (_limit(comparison, side, metric) for side in (comparison.full, comparison.compressed))
    return metric.label, metric.show(full), *of_full, metric.show(small), *of_small, toned(f"{ratio:.2f}x", tone)


def _limit(comparison: "Comparison", side: "Measured", metric: MetricRow) -> tuple[str, ...]:
    """Return two cells if the machine was probed, else none."""
    if side.floors is None:
        return ()
    if metric.limit is None:
        return ("", "")
    best, share = metric.limit(comparison, side.floors)
    return (metric.show(best), f"{share:.0%}")


def _best(what: str, rates: Mapping[str, float], unit: str) -> str:
    """Return the fastest result of a probe."""
    name, rate = max(rates.items(), key=lambda item: item[1])
    return f"{what}: {show_bytes(rate).removesuffix('B')}{unit} ({name})"
