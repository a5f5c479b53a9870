"""ringkv bench: a full cache against a compressed one on this machine."""

from dataclasses import replace
from functools import partial
from typing import Annotated

from ringkv.cli.bench_tables import print_comparison
from ringkv.cli.options import MODEL_NAME, SWITCH, AsJson, EngineOptions, ModelName, option, unpanelled
from ringkv.cli.output import print_json
from ringkv.llm.show_progress import show_progress
from ringkv.machine.interrupts import uninterrupted
from ringkv.plan.check_options import check_options

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
        from ringkv.residency.locate import locate

        workload = Workload(prompt, output, rounds)
        refuse_baseline(options)
        folder = locate(model, progress)
        memory = available_bytes(), free_bytes(engine.device)
        pair = plan_pair(folder, load_config(folder), options, workload, *memory)
        compared = replace(compare(pair, workload, progress, limit), model=model)
    if as_json:
        print_json(compared)
    else:
        print_comparison(compared)
