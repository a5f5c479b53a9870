"""ringkv bench: full against compressed, on this machine."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ringkv.cli.options import AsJson, EngineOptions
from ringkv.cli.output import console, print_json, print_table
from ringkv.cli.progress import watching
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.bench.compare import Comparison, Measured

SLOTS = 8
WORKLOAD = "Workload"


class Figure(NamedTuple):
    """A row of the table: a field of `Measured`."""

    label: str
    field: str
    show: Callable[[float], str]
    more_is_better: bool = False


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{1000 * value:,.1f}"


FIGURES = (
    Figure("entries a slot", "entries", _count),
    Figure("a slot", "slot_bytes", show_bytes),
    Figure("held, with staging", "held_bytes", show_bytes),
    Figure("prefill, tok/s", "prefill_tokens_per_s", _count, more_is_better=True),
    Figure("first token, ms", "first_token_s", _milliseconds),
    Figure("decode, tok/s in all", "decode_tokens_per_s", _count, more_is_better=True),
    Figure("a step, ms", "step_s", _milliseconds),
    Figure("read a step", "step_bytes", show_bytes),
    Figure("floor of a step, ms", "floor_s", _milliseconds),
)


def bench(
    *,
    engine: EngineOptions,
    prompt: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", help="Of each request.", rich_help_panel=WORKLOAD)
    ] = 4096,
    output: Annotated[
        int, typer.Option("--output-tokens", metavar="N", help="Of each request.", rich_help_panel=WORKLOAD)
    ] = 64,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="How often each is measured.", rich_help_panel=WORKLOAD)
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure a full cache against a compressed one, side by side: prefill, decode, memory, and the memory's floor.

    The two alternate within the run and medians are shown: only their ratio means much on a machine that others use.
    The floor is the time to read what a step must read, at the bandwidth measured in the same run.

        ringkv bench --slots 8 --prompt-tokens 7000 --kv-budget 1792
        ringkv bench --model qwen2.5-coder-1.5b --slots 2 --json
    """
    with watching() as tell:
        tell(0, 0, "loading torch")
        from ringkv.bench.compare import compare
        from ringkv.bench.pair import Workload, pair
        from ringkv.models.config import load_config
        from ringkv.plan.memory import available_bytes
        from ringkv.residency.locate import locate

        workload = Workload(prompt, output, rounds)
        folder = locate(engine.model, tell)
        configs = pair(folder, load_config(folder), engine.options(SLOTS), workload, available_bytes())
        found = replace(compare(configs, workload, tell), model=engine.model)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: "Comparison") -> None:
    full, small = found.full, found.compressed
    console().print(
        f"{found.model}: {found.slots} requests of {found.prompt_tokens:,} prompt and {found.output_tokens:,} output "
        f"tokens\n{found.dtype} on {found.device}, {found.threads} threads, graphs {found.graphs}, "
        f"torch {found.torch}, {show_bytes(found.bandwidth)}/s; medians of {found.rounds} rounds, alternating\n",
        soft_wrap=True,
    )
    print_table(("", f"{full.cache} ", f"{small.cache} ", "ratio "), _rows(full, small))


def _rows(full: "Measured", small: "Measured") -> list[tuple[str, ...]]:
    rows = [_row(figure, getattr(full, figure.field), getattr(small, figure.field)) for figure in FIGURES]
    return [*rows, ("floor / step", f"{full.floor_share:.0%}", f"{small.floor_share:.0%}", "")]


def _row(figure: Figure, full: float, small: float) -> tuple[str, ...]:
    """The ratio says how many times better the compressed cache is."""
    ratio = small / full if figure.more_is_better else full / small
    return (figure.label, figure.show(full), figure.show(small), f"{ratio:.2f}x")
