"""ringkv bench: a full cache against a compressed one on this machine, or a profile of one."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.bench_tables import print_comparison, print_profile
from ringkv.cli.options import MODEL_NAME, SWITCH, AsJson, EngineOptions, ModelName
from ringkv.cli.output import print_json
from ringkv.llm.show_progress import show_progress
from ringkv.machine.interrupts import uninterrupted
from ringkv.plan.check_options import check_options

if TYPE_CHECKING:
    from ringkv.bench.compare import Comparison
    from ringkv.bench.profile import Profile

SLOTS = 8
WORKLOAD = "Workload"


def bench(
    *,
    prompt: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", help="Prompt tokens per request.", rich_help_panel=WORKLOAD)
    ] = 4096,
    output: Annotated[
        int, typer.Option("--output-tokens", metavar="N", help="Output tokens per request.", rich_help_panel=WORKLOAD)
    ] = 64,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Measurements of each cache.", rich_help_panel=WORKLOAD)
    ] = 3,
    limit: Annotated[
        bool,
        typer.Option("--limit", metavar=SWITCH, help="Also measure the hardware limits and the share reached."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Write a trace of one prefill and its decode steps and print the slowest operators; no comparison.",
        ),
    ] = None,
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

    --profile runs one engine, with any --kv-policy, under torch's profiler. Open the file at ui.perfetto.dev or
    chrome://tracing. Time under a phase's own name is spent in the graphs' fused loops and in Python; --graphs off
    splits the loops into operators, and is slower.

        ringkv bench --profile trace.json --output-tokens 9 --kv-policy full
    """
    if limit and trace is not None:
        raise InvalidRequest("--limit compares and --profile does not; use one at a time")
    if trace is not None and not os.access(trace.parent, os.W_OK):
        raise InvalidRequest(
            f"{trace.parent} is not a writable folder for {trace.name}; choose another file", "profile"
        )
    options = engine.filled(slots=SLOTS)
    check_options(options)
    with show_progress() as progress:
        progress(0, 0, "loading torch")
        with uninterrupted():
            from ringkv.bench.pair import Workload, plan_engine, plan_pair, refuse_baseline
        from ringkv.engine.device_memory import free_bytes
        from ringkv.models.config import load_config
        from ringkv.plan.memory import available_bytes
        from ringkv.residency.locate import locate

        workload = Workload(prompt, output, rounds)
        if trace is None:
            refuse_baseline(options)
        folder = locate(model, progress)
        memory = available_bytes(), free_bytes(engine.device)
        planned = folder, load_config(folder), options, workload, *memory
        measured: Comparison | Profile
        if trace is None:
            from ringkv.bench.compare import compare

            measured = replace(compare(plan_pair(*planned), workload, progress, limit), model=model)
            show = partial(print_comparison, measured)
        else:
            from ringkv.bench.profile import profile

            measured = profile(plan_engine(*planned), workload, trace, progress)
            show = partial(print_profile, measured)
    if as_json:
        print_json(measured)
    else:
        show()
