"""ringkv bench: a full cache against a compressed one on this machine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from rich.text import Text

from ringkv.cli.options import MODEL_NAME, SWITCH, AsJson, EngineOptions, ModelName, option, unpanelled
from ringkv.cli.output import console, print_json, print_table, toned
from ringkv.llm.show_progress import show_progress
from ringkv.machine.interrupts import uninterrupted
from ringkv.plan.check_options import check_options
from ringkv.plan.units import show_bytes

SLOTS = 8
_workload = partial(option, "Workload", show_default=True)


def bench(
    *,
    prompt: Annotated[int, _workload("--prompt-tokens", "N", "Prompt tokens per request.")] = 4096,
    output: Annotated[int, _workload("--output-tokens", "N", "Output tokens per request.")] = 64,
    rounds: Annotated[int, _workload("--rounds", "N", "Measurements of each cache.")] = 3,
    limit: Annotated[
        bool, unpanelled("--limit", SWITCH, "Also measure the hardware limits and the share reached.")
    ] = False,
    model: ModelName = MODEL_NAME,
    engine: EngineOptions,
    as_json: AsJson = False,
) -> None:
    """Measure a full cache against a compressed one, side by side: prefill, decode, memory.

    The two alternate within the run and medians are shown. On a shared machine only their ratio is meaningful.

        ringkv bench --slots 8 --prompt-tokens 7000 --kv-budget 1792
        ringkv bench qwen2.5-coder-1.5b --slots 2 --json

    --limit shows the best speed that this machine allows beside each speed. The limit of a decode step is the time to
    read all weights and the slots' entries once, at the highest measured memory bandwidth. The limit of prefill is the
    time of its matrix products and causal attention, at the highest measured bfloat16 rate. Both are measured between
    the rounds. 100% cannot be exceeded; 80% leaves little to gain.

        ringkv bench --limit --slots 1
    """
    options = engine.filled(slots=SLOTS)
    check_options(options)
    with show_progress() as progress:
        progress(0, 0, "loading torch")
        with uninterrupted():
            from ringkv.bench.compare import compare
            from ringkv.bench.pair import Workload, plan_pair, refuse_baseline
        from ringkv.engine.device_memory import free_bytes
        from ringkv.models.config import load_config
        from ringkv.plan.memory import available_bytes
        from ringkv.residency.locate import locate, located_drafts

        workload = Workload(prompt, output, rounds)
        refuse_baseline(options)
        with_drafts = located_drafts(options)
        folder, options = locate(model, progress), with_drafts(progress)
        memory = available_bytes(), free_bytes(engine.device)
        pair = plan_pair(folder, load_config(folder), options, workload, *memory)
        compared = replace(compare(pair, workload, progress, limit), model=model)
    if as_json:
        print_json(compared)
    else:
        print_comparison(compared)


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
