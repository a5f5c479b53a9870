"""ringkv plan: the memory that serving a model takes, with a full and a compressed cache."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from ringkv.cli.failures import FAILED
from ringkv.cli.options import CACHE, MODEL, MODEL_NAME, AsJson, flag, option, setting
from ringkv.cli.output import console, print_json, print_table
from ringkv.cli.spread import Flags
from ringkv.plan.advice import Advice, advise
from ringkv.plan.prefill_workspace import DEFAULT_CHUNK
from ringkv.plan.rank_costs import ExpertCosts
from ringkv.plan.report import CachePlan, PlanRequest, Report, find_shape, report
from ringkv.plan.units import show_bytes

_RANKS = {"heads": "each of", "slots": "slots divided among"}
_SETTINGS = (
    *("kv_budget", "kv_compression", "kv_format", "kv_format_skip", "kv_policy"),
    *("kv_window", "kv_heads", "kv_review", "kv_page", "kv_tier"),
)

_HELPS = {
    "device": ("NAME", "cpu (default) or cuda, whose host's memory --kv-tier memory takes."),
    "memory": ("BYTES", "Memory of each rank, such as 80GB: shows how many slots fit."),
    "reserve": (
        "BYTES",
        "Memory of each rank for everything except weights, cache and sampler. Default: 1GiB, as serve reserves "
        "on a CPU, beside its --prefix-store; on a GPU it reserves 2GiB.",
    ),
    "bandwidth": ("BYTES", "Memory read per second, such as 3.35TB: shows the floor of a step."),
    "attention_parallel": (
        "WHAT",
        "What ranks divide of latent attention in decode: slots (default) or heads. Other models divide heads.",
    ),
    "lanes": ("N", "Prompts in staging at once; 1 by default."),
    "chunk": ("TOKENS", f"Prompt tokens in a pass; {DEFAULT_CHUNK} by default, as serve on a CPU; 2048 on a GPU."),
}
PlanOptions = Annotated[
    PlanRequest,
    Flags(
        tokens=flag("tokens", "TOKENS", "Longest prompt plus output, such as 128k; the context by default.", MODEL),
        prompt_tokens=flag("prompt_tokens", "TOKENS", "Longest prompt; --tokens by default.", MODEL, "--max-prompt"),
        prefill_workspace=flag(
            "prefill_workspace", "TOKENS", "Staged tokens of one prompt at most; --max-prompt by default.", MODEL
        ),
        dtype=flag("dtype", "TYPE", "Dtype of keys and values: bfloat16 (default), float16, float32 or float8.", CACHE),
        **{name: setting(name) for name in _SETTINGS},
        **{name: flag(name, *text) for name, text in _HELPS.items()},
        tensor_parallel=flag(
            "tensor_parallel",
            "N",
            "Tensor-parallel ranks, 1 by default; figures are for the largest.",
            flags="--tensor-parallel,--tp",
        ),
        weights=flag(
            "weights",
            "TYPE",
            "bf16, int8, int4 or a dtype; as published by default.",
            flags="--weights,--weights-dtype",
        ),
    ),
]


def plan(
    *,
    model: Annotated[
        str | None,
        option(
            MODEL,
            "--model",
            "NAME",
            "A directory with config.json, a GGUF file or only its name, a hub id, or a short name such as qwen3-8b; "
            f"docs/models.md lists these. Default: {MODEL_NAME}.",
        ),
    ] = None,
    request: PlanOptions,
    as_json: AsJson = False,
) -> None:
    """Calculate the memory that a model needs: bytes per token and per slot, weights, and how many slots fit.

    The figures are computed from the model's shape; nothing is downloaded or loaded.

    With --memory the exit status is 1 if no slot fits under either cache.

        ringkv plan llama-3.1-8b --memory 80GB --tokens 128k --kv-budget 4096
        ringkv plan llama-3.1-70b --memory 80GB --tensor-parallel 8
        ringkv plan deepseek-r1 --tokens 128k --tensor-parallel 16 --memory 64GB
    """
    named, model = model, model or MODEL_NAME
    shape = find_shape(model)
    planned = report(shape, request)
    if as_json:
        print_json(planned)
    else:
        if named is None:
            console().print(f"No model was named; this is the plan of {model}, the default.\n", soft_wrap=True)
        _print(planned)
        if request.kv_policy is None:
            _print_auto(planned)
        if planned.memory is not None:
            _print_advice(advise(model, shape, request))
    if not _fits(planned):
        raise typer.Exit(FAILED)


def _fits(planned: Report) -> bool:
    return planned.memory is None or any(row.slots for row in planned.rows)


def _print(planned: Report) -> None:
    out, columns = console(), _columns(planned)
    out.print(_head(planned), soft_wrap=True)
    sizes = {
        "per token": planned.token_bytes,
        "weights": planned.weight_bytes,
        f"staging ({planned.lanes} lane)": planned.staging_bytes,
        "reserve": planned.reserve,
        "sampler, per slot": planned.sampler_bytes,
    }
    if planned.window_layers:
        sizes[f"{planned.window_layers} window layers, per slot"] = planned.window_bytes
    print_table(("", "bytes ", ""), [(name, f"{size:,}", show_bytes(size)) for name, size in sizes.items()])
    out.print()
    print_table(("cache", *columns), [(row.cache, *(show(row) for show in columns.values())) for row in planned.rows])
    if planned.experts:
        _print_experts(planned.experts, planned.tensor_parallel)
    if planned.divided:
        _print_divided(planned)
    if not _fits(planned):
        reserved = f"; --reserve takes {show_bytes(planned.reserve)}" if planned.reserve else ""
        out.print(
            f"\nno slot fits in {show_bytes(planned.memory or 0)}: {_too_large(planned)}{reserved}", soft_wrap=True
        )


def _head(planned: Report) -> str:
    slots = "" if planned.kv_format == "plain" else f", slots in {planned.kv_format}"
    ranks = (
        ""
        if planned.tensor_parallel == 1
        else f", {_RANKS[planned.attention_parallel]} {planned.tensor_parallel} ranks"
    )
    staged = "" if planned.staged_tokens >= planned.prompt_tokens else f", {planned.staged_tokens:,} of them staged"
    text = (
        f"{planned.model}: {planned.parameters / 1e9:.3g} billion parameters in {planned.weights_dtype}, "
        f"cache in {planned.dtype}{slots}{ranks}\n"
        f"requests of up to {planned.tokens:,} tokens, prompts of up to {planned.prompt_tokens:,}{staged}\n"
    )
    if planned.weights_dtype in (*planned.served_bytes, "bfloat16"):
        return text
    sizes = ", ".join(f"{name} {show_bytes(size)}" for name, size in planned.served_bytes.items())
    return f"{text}{planned.weights_dtype} is for arithmetic; `ringkv serve --weights` holds {sizes}, by default bf16\n"


def _columns(planned: Report) -> dict[str, Callable[[CachePlan], str]]:
    """Map headers to functions that give a row's text. Slots need --memory, times --bandwidth."""
    rows, memory, has_times = planned.rows, planned.memory, planned.rows[0].step_seconds is not None
    total = "total with one slot " if memory is None else "total "
    columns: tuple[tuple[object, str, Callable[[Any], str]], ...] = (
        (True, "entries ", lambda row: f"{row.entries:,}"),
        (True, "bytes per slot ", lambda row: show_bytes(row.slot_bytes)),
        (any(row.file_bytes for row in rows), "on disk per slot ", lambda row: show_bytes(row.file_bytes)),
        (any(row.host_bytes for row in rows), "in host memory per slot ", lambda row: show_bytes(row.host_bytes)),
        (memory is not None, f"slots in {show_bytes(memory or 0)} ", lambda row: f"{row.slots:,}"),
        (True, total, lambda row: show_bytes(row.total_bytes)),
        (True, "read per step ", lambda row: show_bytes(row.step_bytes)),
        (has_times, "step floor ", lambda row: f"{1000 * row.step_seconds:.3g} ms"),
        (has_times, "max tok/s ", lambda row: f"{row.tokens_per_second:,.0f}"),
    )
    return {header: show for is_shown, header, show in columns if is_shown}


def _print_experts(costs: ExpertCosts, ranks: int) -> None:
    console().print()
    read, sizes = f"read per step of {costs.slots:,} ", (show_bytes(costs.tensor_bytes), show_bytes(costs.tensor_read))
    if ranks == 1:
        print_table(("", "bytes ", read), [("experts", *sizes)])
        return
    exchanged, of_experts = show_bytes(costs.exchanged), (show_bytes(costs.expert_bytes), show_bytes(costs.expert_read))
    print_table(
        ("experts of a rank", "bytes ", read, "exchanged per layer "),
        [("tensor parallel", *sizes, exchanged), ("expert parallel, busiest", *of_experts, exchanged)],
    )


def _print_divided(planned: Report) -> None:
    """Print a row for the full cache and one for the compressed cache of each context."""
    ranks, memory = planned.tensor_parallel, show_bytes(planned.memory or 0)
    console().print(
        f"\nlatents with slots divided among {ranks} ranks: {ranks} x floor(({memory} - reserve - weights - staging) / "
        f"(slot + {ranks} x sampler)) slots",
        soft_wrap=True,
    )
    rows = []
    for context in planned.divided:
        for cache in context.caches:
            sizes = map(show_bytes, (context.weight_bytes, context.staging_bytes, cache.slot_bytes))
            paper = (f"{figure:,}" for figure in cache.paper or ())
            rows.append((f"{context.tokens:,}", f"{cache.entries:,}", *sizes, f"{cache.slots:,}", *paper))
    papers = ("paper's slots ", "paper's tok/s ") if planned.divided[0].caches[0].paper else ()
    print_table(("context", "entries ", "weights ", "staging ", "slot ", "slots ", *papers), rows)


def _print_auto(planned: Report) -> None:
    """Print what `ringkv serve --kv-policy auto` would choose without a budget, if a memory was given."""
    full, compressed = planned.rows
    if full.slots:
        console().print(f"\n--kv-policy auto keeps every token with up to {full.slots:,} slots, and evicts with more")
    elif compressed.slots:
        console().print("\n--kv-policy auto evicts")


def _print_advice(advice: Sequence[Advice]) -> None:
    """Print the commands that give more slots of the compressed cache, each on one line."""
    if not advice:
        return
    out = console()
    out.print("\nmore slots with a compressed cache (--memory is that of each rank):")
    for each in advice:
        out.print(f"{each.slots:>7,}  {each.command}", soft_wrap=True)


def _too_large(planned: Report) -> str:
    """Return what does not fit, and what to lower."""
    memory = planned.memory or 0
    if planned.weight_bytes + planned.reserve <= memory:
        fixed = show_bytes(planned.weight_bytes + planned.staging_bytes)
        return f"weights and staging alone take {fixed}; lower --tokens"
    fitting = [
        f"--weights {name} ({show_bytes(size)})"
        for name, size in planned.served_bytes.items()
        if size < planned.weight_bytes and size + planned.reserve <= memory
    ]
    remedy = f"choose {' or '.join(fitting)}" if fitting else "divide them with --tensor-parallel, or raise --memory"
    return f"the weights alone take {show_bytes(planned.weight_bytes)}; {remedy}"
