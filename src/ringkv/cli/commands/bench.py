"""ringkv bench: full against compressed, on this machine."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.cli.options import AsJson, EngineOptions
from ringkv.cli.output import console, print_json, print_table
from ringkv.cli.progress import watching
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.bench.compare import Comparison, Measured

SLOTS = 8
WORKLOAD = "Workload"


def bench(
    *,
    engine: EngineOptions,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", help="Of each request.", rich_help_panel=WORKLOAD)
    ] = 4096,
    output_tokens: Annotated[
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

        workload = Workload(prompt_tokens, output_tokens, rounds)
        options = engine.options()
        options = replace(options, slots=SLOTS if options.slots is None else options.slots)
        folder = locate(engine.model, tell)
        configs = pair(folder, load_config(folder), options, workload, available_bytes())
        found = replace(compare(configs, workload, tell), model=engine.model)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: "Comparison") -> None:
    full, small = found.full, found.compressed
    console().print(
        f"{found.model}: {found.slots} requests of {found.prompt_tokens:,} prompt and {found.output_tokens:,} output "
        f"tokens\n{found.dtype} on {found.device}, {found.threads} threads, graphs {found.graphs}, torch {found.torch}, "
        f"{show_bytes(found.bandwidth)}/s; medians of {found.rounds} rounds, alternating\n",
        soft_wrap=True,
    )
    print_table(("", f"{full.cache} ", f"{small.cache} ", "ratio "), _rows(full, small))


def _rows(full: "Measured", small: "Measured") -> list[tuple[str, ...]]:
    """Ratios say how many times better the compressed cache is, so its share of memory and time is turned round."""
    return [
        ("entries a slot", f"{full.entries:,}", f"{small.entries:,}", _times(full.entries / small.entries)),
        ("a slot", show_bytes(full.slot_bytes), show_bytes(small.slot_bytes), _times(full.slot_bytes / small.slot_bytes)),
        (
            "held, with staging",
            show_bytes(full.held_bytes),
            show_bytes(small.held_bytes),
            _times(full.held_bytes / small.held_bytes),
        ),
        (
            "prefill, tok/s",
            f"{full.prefill_tokens_per_s:,.0f}",
            f"{small.prefill_tokens_per_s:,.0f}",
            _times(small.prefill_tokens_per_s / full.prefill_tokens_per_s),
        ),
        (
            "first token, s",
            f"{full.first_token_s:.2f}",
            f"{small.first_token_s:.2f}",
            _times(full.first_token_s / small.first_token_s),
        ),
        (
            "decode, tok/s in all",
            f"{full.decode_tokens_per_s:,.1f}",
            f"{small.decode_tokens_per_s:,.1f}",
            _times(small.decode_tokens_per_s / full.decode_tokens_per_s),
        ),
        ("a step, ms", f"{1000 * full.step_s:.1f}", f"{1000 * small.step_s:.1f}", _times(full.step_s / small.step_s)),
        (
            "its floor, ms",
            f"{1000 * full.floor_s:.1f}",
            f"{1000 * small.floor_s:.1f}",
            _times(full.floor_s / small.floor_s),
        ),
        ("floor / step", f"{full.floor_share:.0%}", f"{small.floor_share:.0%}", ""),
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
