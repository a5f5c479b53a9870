"""ringkv plan: the memory that serving a model takes, with a full and a compressed cache."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.cli.counts import parse_count
from ringkv.cli.failures import FAILED
from ringkv.cli.options import MACHINE, MODEL, AsJson
from ringkv.cli.output import console, print_json, print_table
from ringkv.cli.plan_of_ranks import print_ranks
from ringkv.cli.settings import CACHE, flag
from ringkv.plan.in_chunks import DEFAULT_CHUNK
from ringkv.plan.kv_settings import changed
from ringkv.plan.units import parse_bytes, parse_ratio, show_bytes

if TYPE_CHECKING:
    from ringkv.base.cache_spec import PlaneFormat
    from ringkv.base.ranks import AttentionParallel
    from ringkv.plan.report import CachePlan, Report

DEFAULT_BUDGET = 2048
_RANKS = {"heads": "each of", "slots": "slots divided among"}


def _option(flag: str, metavar: str, help: str, panel: str, show: bool = False) -> Any:
    return typer.Option(*flag.split(","), metavar=metavar, help=help, rich_help_panel=panel, show_default=show)


def plan(
    *,
    model: Annotated[
        str,
        _option(
            "--model",
            "NAME",
            "A directory with config.json, a GGUF file or only its name, a hub id, or a short name such as qwen3-8b; "
            "docs/models.md lists these.",
            MODEL,
            show=True,
        ),
    ] = "smollm2",
    tokens: Annotated[
        str | None,
        _option(
            "--tokens", "COUNT", "Longest prompt plus output, such as 128k; the model's context by default.", MODEL
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None, _option("--max-prompt", "COUNT", "Longest prompt; --tokens by default.", MODEL)
    ] = None,
    prefill_workspace: Annotated[
        str | None,
        _option("--prefill-workspace", "COUNT", "Staged tokens of one prompt at most; --max-prompt by default.", MODEL),
    ] = None,
    budget: Annotated[
        str | None, _option("--kv-budget", "ENTRIES", "Entries of a compressed slot; 2048 by default.", CACHE)
    ] = None,
    kv_compression: Annotated[
        str | None,
        _option("--kv-compression", "RATIO", "Instead of --kv-budget: --tokens divided by this, such as 4x.", CACHE),
    ] = None,
    dtype: Annotated[
        str,
        _option("--dtype", "TYPE", "Dtype of keys and values: bfloat16, float16, float32 or float8.", CACHE, show=True),
    ] = "bfloat16",
    kv_format: Annotated[
        str,
        _option(
            "--kv-format",
            "FORMAT",
            "Format of slots: plain is --dtype; zipcache has scales per chunk, the others per token and head. "
            "Staging is plain.",
            CACHE,
            show=True,
        ),
    ] = "plain",
    kv_format_skip: Annotated[
        int | None,
        _option(
            "--kv-format-skip",
            "LAYERS",
            "Layers at each end of the model whose slots stay plain; 2 below 8 bits, else 0, by default.",
            CACHE,
        ),
    ] = None,
    kv_policy: Annotated[str | None, flag("kv_policy")] = None,
    kv_window: Annotated[int | None, flag("kv_window")] = None,
    kv_heads: Annotated[str | None, flag("kv_heads")] = None,
    kv_review: Annotated[int | None, flag("kv_review")] = None,
    kv_page: Annotated[int | None, flag("kv_page")] = None,
    kv_tier: Annotated[str | None, flag("kv_tier")] = None,
    device: Annotated[
        str,
        _option("--device", "NAME", "cpu or cuda, whose host's memory --kv-tier memory takes.", MACHINE, show=True),
    ] = "cpu",
    memory: Annotated[
        str | None,
        _option("--memory", "BYTES", "Memory of each rank, such as 80GB: shows how many slots fit.", MACHINE),
    ] = None,
    reserve: Annotated[
        str | None,
        _option(
            "--reserve",
            "BYTES",
            "Memory of each rank for everything except weights, cache and sampler. Default: 1GiB, as serve reserves "
            "on a CPU, beside its --prefix-store; on a GPU it reserves 2GiB.",
            MACHINE,
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        _option("--bandwidth", "BYTES", "Memory read per second, such as 3.35TB: shows the floor of a step.", MACHINE),
    ] = None,
    tensor_parallel: Annotated[
        int,
        _option(
            "--tensor-parallel,--tp", "N", "Tensor-parallel ranks; figures are for the largest.", MACHINE, show=True
        ),
    ] = 1,
    attention_parallel: Annotated[
        str | None,
        _option(
            "--attention-parallel",
            "WHAT",
            "What ranks divide of latent attention in decode: slots (default) or heads. Other models divide heads.",
            MACHINE,
        ),
    ] = None,
    lanes: Annotated[int, _option("--lanes", "N", "Prompts in staging at once.", MACHINE, show=True)] = 1,
    chunk: Annotated[
        int,
        _option("--chunk", "TOKENS", "Prompt tokens in a pass, as serve on a CPU; 2048 on a GPU.", MACHINE, show=True),
    ] = DEFAULT_CHUNK,
    weights_dtype: Annotated[
        str | None,
        _option("--weights,--weights-dtype", "TYPE", "bf16, int8, int4 or a dtype; as published by default.", MACHINE),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Calculate the memory that a model needs: bytes per token and per slot, weights, and how many slots fit.

    The figures are computed from the model's shape; nothing is downloaded or loaded.

    With --memory the exit status is 1 if no slot fits under either cache.

        ringkv plan llama-3.1-8b --memory 80GB --tokens 128k --kv-budget 4096
        ringkv plan llama-3.1-70b --memory 80GB --tensor-parallel 8
        ringkv plan deepseek-r1 --tokens 128k --tensor-parallel 16 --memory 64GB
    """
    from ringkv.plan.places import reserve_on
    from ringkv.plan.report import PlanRequest, find_shape, report

    shape = find_shape(model)
    chosen = {"kv_policy": kv_policy, "kv_window": kv_window, "kv_heads": kv_heads, "kv_review": kv_review}
    longest = parse_count(tokens, "tokens")
    request = PlanRequest(
        tokens=longest,
        prompt_tokens=parse_count(prompt_tokens, "prompt_tokens"),
        prefill_workspace=parse_count(prefill_workspace, "prefill_workspace"),
        budget=_budget(parse_count(budget, "kv_budget"), kv_compression, longest or shape.context),
        lanes=lanes,
        chunk=chunk,
        tensor_parallel=tensor_parallel,
        attention_parallel=cast("AttentionParallel | None", attention_parallel),  # `report` checks it too
        dtype=dtype,
        kv_format=cast("PlaneFormat", kv_format),  # `report` checks it
        kv_format_skip=kv_format_skip,
        kv_page=kv_page,
        kv_tier=kv_tier,
        device=device,
        kv=changed(KVChoice(), {name: value for name, value in chosen.items() if value is not None}),
        weights_dtype=weights_dtype,
        memory=None if memory is None else parse_bytes(memory),
        bandwidth=None if bandwidth is None else parse_bytes(bandwidth, "bandwidth"),
        reserve=reserve_on(device) if reserve is None else parse_bytes(reserve, "reserve"),
    )
    found = report(shape, request)
    if as_json:
        print_json(found)
    else:
        _print(found)
        if kv_policy is None:
            _print_auto(found)
    if not _fits(found):
        raise typer.Exit(FAILED)


def _fits(found: "Report") -> bool:
    return found.memory is None or any(row.slots for row in found.rows)


def _budget(budget: int | None, compression: str | None, tokens: int) -> int:
    if compression is None:
        return DEFAULT_BUDGET if budget is None else budget
    if budget is not None:
        raise InvalidRequest("kv_budget and kv_compression both set the budget; leave one out", "kv_compression")
    return max(1, int(tokens / parse_ratio(compression)))


def _print(found: "Report") -> None:
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


def _print_auto(found: "Report") -> None:
    """Print what `ringkv serve --kv-policy auto` would choose without a budget, if a memory was given."""
    full, compressed = found.rows
    if full.slots:
        console().print(f"\nauto, without a budget: full with up to {full.slots:,} slots, snapstream with more")
    elif compressed.slots:
        console().print("\nauto, without a budget: snapstream")


def _staged(found: "Report") -> str:
    """Return what is staged of a prompt, if it is less than the longest one."""
    return "" if found.staged_tokens >= found.prompt_tokens else f", {found.staged_tokens:,} of them staged"


def _served(found: "Report") -> str:
    """Return a line about what a server would hold of weights that are counted in another type."""
    if found.weights_dtype in (*found.served_bytes, "bfloat16"):
        return ""
    sizes = ", ".join(f"{name} {show_bytes(size)}" for name, size in found.served_bytes.items())
    return f"{found.weights_dtype} is for arithmetic; `ringkv serve --weights` holds {sizes}, by default bf16\n"


def _too_large(found: "Report") -> str:
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


def _windows(found: "Report") -> list[tuple[str, str, str]]:
    """Return a row for the layers that are never compressed, if there are any."""
    if not found.window_layers:
        return []
    name = f"{found.window_layers} window layers, per slot"
    return [(name, f"{found.window_bytes:,}", show_bytes(found.window_bytes))]


def _columns(found: "Report") -> "dict[str, Callable[[CachePlan], str]]":
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
