"""ringkv plan: the memory that serving a model takes, with a full and a compressed cache."""

from collections.abc import Callable
from typing import Annotated

import typer

from ringkv.cli.failures import FAILED
from ringkv.cli.options import CACHE, MODEL, MODEL_NAME, AsJson, machine, option, setting
from ringkv.cli.output import console, print_json, print_table
from ringkv.cli.plan_of_ranks import print_ranks
from ringkv.cli.spread import Flags
from ringkv.plan.in_chunks import DEFAULT_CHUNK
from ringkv.plan.report import CachePlan, PlanRequest, Report, find_shape, report
from ringkv.plan.units import show_bytes

_RANKS = {"heads": "each of", "slots": "slots divided among"}
_SETTINGS = ("kv_policy", "kv_window", "kv_heads", "kv_review", "kv_page", "kv_unread", "kv_tier")

PlanOptions = Annotated[
    PlanRequest,
    Flags(
        tokens=machine(
            "--tokens",
            "TOKENS",
            "Longest prompt plus output, such as 128k; the model's context by default.",
            int,
            MODEL,
        ),
        prompt_tokens=machine("--max-prompt", "TOKENS", "Longest prompt; --tokens by default.", int, MODEL),
        prefill_workspace=machine(
            "--prefill-workspace", "TOKENS", "Staged tokens of one prompt at most; --max-prompt by default.", int, MODEL
        ),
        kv_budget=setting("kv_budget"),
        kv_compression=setting("kv_compression"),
        dtype=machine(
            "--dtype", "TYPE", "Dtype of keys and values: bfloat16 (default), float16, float32 or float8.", panel=CACHE
        ),
        kv_format=setting("kv_format"),
        kv_format_skip=setting("kv_format_skip"),
        **{name: setting(name) for name in _SETTINGS},
        device=machine("--device", "NAME", "cpu (default) or cuda, whose host's memory --kv-tier memory takes."),
        memory=machine("--memory", "BYTES", "Memory of each rank, such as 80GB: shows how many slots fit."),
        reserve=machine(
            "--reserve",
            "BYTES",
            "Memory of each rank for everything except weights, cache and sampler. Default: 1GiB, as serve reserves "
            "on a CPU, beside its --prefix-store; on a GPU it reserves 2GiB.",
        ),
        bandwidth=machine("--bandwidth", "BYTES", "Memory read per second, such as 3.35TB: shows the floor of a step."),
        tensor_parallel=machine(
            "--tensor-parallel,--tp", "N", "Tensor-parallel ranks, 1 by default; figures are for the largest.", int
        ),
        attention_parallel=machine(
            "--attention-parallel",
            "WHAT",
            "What ranks divide of latent attention in decode: slots (default) or heads. Other models divide heads.",
        ),
        lanes=machine("--lanes", "N", "Prompts in staging at once; 1 by default.", int),
        chunk=machine(
            "--chunk",
            "TOKENS",
            f"Prompt tokens in a pass; {DEFAULT_CHUNK} by default, as serve on a CPU.",
            int,
        ),
        weights=machine("--weights,--weights-dtype", "TYPE", "bf16, int8, int4 or a dtype; as published by default."),
    ),
]


def plan(
    *,
    model: Annotated[
        str,
        option(
            MODEL,
            "--model",
            "NAME",
            "A directory with config.json, a GGUF file or only its name, a hub id, or a short name such as qwen3-8b; "
            "docs/models.md lists these.",
            show_default=True,
        ),
    ] = MODEL_NAME,
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
    found = report(find_shape(model), request)
    if as_json:
        print_json(found)
    else:
        _print(found)
        if request.kv_policy is None:
            _print_auto(found)
    if not _fits(found):
        raise typer.Exit(FAILED)


def _fits(found: Report) -> bool:
    return found.memory is None or any(row.slots for row in found.rows)


def _print(found: Report) -> None:
    slots = "" if found.kv_format == "plain" else f", slots in {found.kv_format}"
    ranks = "" if found.tensor_parallel == 1 else f", {_RANKS[found.attention_parallel]} {found.tensor_parallel} ranks"
    console().print(
        f"{found.model}: {found.parameters / 1e9:.3g} billion parameters in {found.weights_dtype}, "
        f"cache in {found.dtype}{slots}{ranks}\n"
        f"requests of up to {found.tokens:,} tokens, prompts of up to {found.prompt_tokens:,}{_staged(found)}\n"
        f"{_served(found)}",
        soft_wrap=True,
    )
    print_table(
        ("", "bytes ", ""),
        [
            ("per token", f"{found.token_bytes:,}", show_bytes(found.token_bytes)),
            ("weights", f"{found.weight_bytes:,}", show_bytes(found.weight_bytes)),
            (f"staging ({found.lanes} lane)", f"{found.staging_bytes:,}", show_bytes(found.staging_bytes)),
            ("reserve", f"{found.reserve:,}", show_bytes(found.reserve)),
            ("sampler, per slot", f"{found.sampler_bytes:,}", show_bytes(found.sampler_bytes)),
            *_windows(found),
        ],
    )
    console().print()
    columns = _columns(found)
    print_table(("cache", *columns), [(row.cache, *(show(row) for show in columns.values())) for row in found.rows])
    print_ranks(found)
    if found.memory is not None and not _fits(found):
        reserved = f"; --reserve takes {show_bytes(found.reserve)}" if found.reserve else ""
        console().print(f"\nno slot fits in {show_bytes(found.memory)}: {_too_large(found)}{reserved}", soft_wrap=True)


def _print_auto(found: Report) -> None:
    """Print what `ringkv serve --kv-policy auto` would choose without a budget, if a memory was given."""
    full, compressed = found.rows
    if full.slots:
        console().print(f"\nauto, without a budget: full with up to {full.slots:,} slots, snapstream with more")
    elif compressed.slots:
        console().print("\nauto, without a budget: snapstream")


def _staged(found: Report) -> str:
    """Return what is staged of a prompt, if it is less than the longest one."""
    return "" if found.staged_tokens >= found.prompt_tokens else f", {found.staged_tokens:,} of them staged"


def _served(found: Report) -> str:
    """Return a line about what a server would hold of weights that are counted in another type."""
    if found.weights_dtype in (*found.served_bytes, "bfloat16"):
        return ""
    sizes = ", ".join(f"{name} {show_bytes(size)}" for name, size in found.served_bytes.items())
    return f"{found.weights_dtype} is for arithmetic; `ringkv serve --weights` holds {sizes}, by default bf16\n"


def _too_large(found: Report) -> str:
    """Return what does not fit, and the remedy."""
    memory, unit = found.memory or 0, "such as 80GB; a bare number is bytes"
    if found.weight_bytes + found.reserve > memory:
        smaller = [(name, size) for name, size in found.served_bytes.items() if size < found.weight_bytes]
        fitting = [f"--weights {name} ({show_bytes(size)})" for name, size in smaller if size + found.reserve <= memory]
        remedy = " or ".join((*fitting, f"raise --memory ({unit})"))
        return f"the weights alone take {show_bytes(found.weight_bytes)}; choose {remedy}"
    fixed = found.weight_bytes + found.staging_bytes
    remedy = f"lower --tokens or raise --memory ({unit})"
    return f"weights and staging alone take {show_bytes(fixed)}; {remedy}"


def _windows(found: Report) -> list[tuple[str, str, str]]:
    """Return a row for the layers that are never compressed, if there are any."""
    if not found.window_layers:
        return []
    name = f"{found.window_layers} window layers, per slot"
    return [(name, f"{found.window_bytes:,}", show_bytes(found.window_bytes))]


def _columns(found: Report) -> dict[str, Callable[[CachePlan], str]]:
    """Map headers to functions that give a row's text. Slots need --memory, times --bandwidth."""
    always = {
        "entries ": lambda row: f"{row.entries:,}",
        "bytes per slot ": lambda row: show_bytes(row.slot_bytes),
    }
    in_files = {"on disk per slot ": lambda row: show_bytes(row.file_bytes)}
    on_host = {"in host memory per slot ": lambda row: show_bytes(row.host_bytes)}
    slot_count = {f"slots in {show_bytes(found.memory or 0)} ": lambda row: f"{row.slots:,}"}
    totals = {
        "total with one slot " if found.memory is None else "total ": lambda row: show_bytes(row.total_bytes),
        "read per step ": lambda row: show_bytes(row.step_bytes),
    }
    timing = {
        "step floor ": lambda row: f"{1000 * row.step_seconds:.3g} ms",
        "max tok/s ": lambda row: f"{row.tokens_per_second:,.0f}",
    }
    has_memory, has_bandwidth = found.memory is not None, found.rows[0].step_seconds is not None
    has_files, has_host = (any(getattr(row, name) for row in found.rows) for name in ("file_bytes", "host_bytes"))
    return (
        always
        | (in_files if has_files else {})
        | (on_host if has_host else {})
        | (slot_count if has_memory else {})
        | totals
        | (timing if has_bandwidth else {})
    )
