"""complete: fills in the options that a user leaves open, without regard to memory."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from ringkv.base.config import Activations, DType, EngineConfig, Graphs, Weights
from ringkv.base.errors import InvalidRequest
from ringkv.base.ranks import ONE_NODE, AttentionParallel, Nodes, Rank
from ringkv.base.wanted import Start
from ringkv.machine.compiler import missing_for_graphs
from ringkv.machine.folders import cache_dir
from ringkv.machine.processor import instructions, multiplies_int8
from ringkv.models.config import ModelConfig
from ringkv.plan.checks import at_least, attention_parallel, choice
from ringkv.plan.choose_kv import choose_kv, paged_entries
from ringkv.plan.head_profile import head_shares
from ringkv.plan.options import AUTO, Options
from ringkv.plan.prefill_workspace import DEFAULT_CHUNK, DEFAULT_CHUNK_ON_GPU, in_chunks, prefill_workspace
from ringkv.plan.slot_format import IN_MEMORY, slot_format, with_residents
from ringkv.plan.speculation import Speculation, draft_config
from ringkv.plan.units import parse_bytes

DEFAULT_PROMPT = 32768
USUAL_STORE = 10**9
Requested = Literal["auto"] | Activations
QUANTISED: tuple[Weights, ...] = ("int8", "int4")
WITH_ACTIVATIONS: Mapping[str, tuple[Weights, ...]] = {
    AUTO: get_args(Weights),
    "16-bit": get_args(Weights),
    "int8": QUANTISED,
    "int4": ("int4",),
}
MAX_STEP = 150  # ms; a token every 150 ms is faster than people read
MOST_LANES = 16  # prompts that share passes; each lane has a window of queries
SHORT_PROMPTS = 4096  # entries for short prompts beside the longest
MOST_THREADS, THREADS_PER_CORE = 16, 4  # the larger bound counts


def complete(model_dir: Path, config: ModelConfig, options: Options) -> EngineConfig:
    """Raises `InvalidRequest` naming the option at fault, and `BudgetTooSmall`."""
    device = _device(options.device)
    chunk, prompt_tokens = _prompt(options, config.context, device)
    dtype = _dtype(options, device)
    kv = choose_kv(options, prompt_tokens, config.context)
    assert kv.budget is not None
    rank, nodes = _ranks(config, options)
    slots, parallel = _slots(config, rank, options)
    longest = at_least(1, "lanes", options.lanes, 1)
    workspace = prefill_workspace(options.prefill_workspace, config.groups, kv, prompt_tokens, chunk)
    staged = workspace or prompt_tokens
    speculation = Speculation.of(options)
    drafts = speculation.tokens
    start = Start(drafts, rank.count, device, options.kv_tier, speculation.model)
    stored = slot_format(config, options, kv, start)
    page = stored.pages.size if stored.pages else 0
    capacity = paged_entries(options, prompt_tokens, config.context, page) if page else kv.budget
    kv = replace(kv, budget=min(kv.budget, capacity))
    stored = with_residents(stored, options.kv_tier, device, kv, capacity)
    weights = _weights(options, dtype, device)
    store = USUAL_STORE if options.prefix_store == AUTO else options.prefix_store or 0
    alone = slots <= longest or device != "cpu"  # passes with several prompts need our CPU operators
    return EngineConfig(
        model_dir=model_dir,
        kv=kv,
        slots=slots,
        capacity=capacity,
        prompt_tokens=prompt_tokens,
        chunk=chunk,
        lanes=longest if alone else max(longest, min(slots, MOST_LANES)),
        staged_tokens=longest * staged + (0 if alone else min(staged, SHORT_PROMPTS)),
        prefill_workspace=workspace,
        max_step=at_least(1, "max_step", options.max_step, MAX_STEP) / 1000,
        dtype=dtype,
        weights=weights,
        activations=_activations(options, weights),
        device=device,
        graphs=_graphs(options, device),
        threads=_threads(options.threads, len(nodes.local(rank.count))),
        rank=rank,
        nodes=nodes,
        attention_parallel=parallel,
        cache_dir=cache_dir(),
        store_bytes=parse_bytes(store, "prefix_store"),
        speculate=drafts,
        drafter=_drafter(speculation, config, options, slots),
        slot_format=stored,
        kv_tier=_tier(options) if page else None,
        head_shares=head_shares(model_dir, config, options, kv),
    )


def _drafter(speculation: Speculation, config: ModelConfig, options: Options, slots: int) -> EngineConfig | None:
    """Return the configuration of the draft model's engine; its weights have four bits where they can."""
    if not speculation.model:
        return None
    folder, model = draft_config(speculation, config)
    wanted = speculation.options(options, slots, model.context)
    if is_quantisable(_dtype(options, _device(options.device)), _device(options.device)):
        wanted = wanted.filled(weights="int4")
    return complete(folder, model, wanted)


def _ranks(config: ModelConfig, options: Options) -> tuple[Rank, Nodes]:
    """Return the first rank of all, and their machines."""
    ranks = at_least(1, "tensor_parallel", options.tensor_parallel, 1)
    if options.expert_parallel and ranks == 1:
        raise InvalidRequest(
            "expert_parallel needs several ranks; set tensor_parallel, or leave it out", "expert_parallel"
        )
    rank = Rank(0, ranks, bool(options.expert_parallel))
    config.of_rank(rank, "memory")  # refuses a number that does not divide the model
    count, index = at_least(1, "nnodes", options.nnodes, 1), at_least(0, "node_rank", options.node_rank, 0)
    if ranks % count:
        raise InvalidRequest(f"nnodes is {count}; it must divide tensor_parallel, {ranks}", "nnodes")
    if index >= count:
        raise InvalidRequest(f"node_rank is {index}; it must be below nnodes, {count}", "node_rank")
    port = at_least(1, "master_port", options.master_port, ONE_NODE.port)
    return rank, Nodes(count, index, options.master_addr or ONE_NODE.address, port)


def _slots(config: ModelConfig, rank: Rank, options: Options) -> tuple[int, AttentionParallel]:
    """Return the number of slots, and what ranks divide of attention. Each rank gets as many slots if they divide them.

    By default they divide the slots of latents if each gets one: then a rank holds its own, else those of all ranks.
    """
    slots = at_least(1, "slots", options.slots, 1)
    parallel = attention_parallel(options.attention_parallel, config.has_latents and slots >= rank.count, rank.count)
    config.of_rank(rank, "memory", parallel)  # refuses slots of a model that has none of latents
    return -(-slots // rank.count) * rank.count if parallel == "slots" else slots, parallel


def _device(requested: str | None) -> str:
    """Whether a GPU is there is found out where torch may be loaded. A number of a CPU means nothing."""
    device = requested or "cpu"
    if device.startswith("cpu:"):
        raise InvalidRequest(f"device {device!r} is unknown; choose cpu, cuda or cuda:N", "device")
    return device


def _tier(options: Options) -> Path | None:
    """Return the directory of the files that hold entries; None for memory."""
    if options.kv_tier in IN_MEMORY:
        return None
    folder = Path(options.kv_tier).expanduser()
    if not folder.is_dir():
        raise InvalidRequest(f"kv_tier {options.kv_tier} is not a directory; create it, or choose memory", "kv_tier")
    return folder


def _prompt(options: Options, context: int, device: str) -> tuple[int, int]:
    """Return the chunk and the prompt limit. The default limit is the context if a workspace bounds the staging."""
    usual = context if options.prefill_workspace else min(context, DEFAULT_PROMPT)
    requested = at_least(1, "prompt_tokens", options.prompt_tokens, usual, context, "the model's context")
    of_device = DEFAULT_CHUNK if device == "cpu" else DEFAULT_CHUNK_ON_GPU
    return in_chunks(requested, context, at_least(1, "chunk", options.chunk, of_device), options.prefill_workspace)


def _dtype(options: Options, device: str) -> DType:
    """The dtype; bfloat16 by default, with half of float32's bytes and its range, so that nothing overflows."""
    dtype: DType = choice("dtype", options.dtype, get_args(DType), "bfloat16")
    if dtype == "float16" and device == "cpu":
        raise InvalidRequest("dtype float16 does not run on the CPU; choose bfloat16 or float32", "dtype")
    return dtype


def _weights(options: Options, dtype: DType, device: str) -> Weights:
    weights: Weights = choice("weights", options.weights, get_args(Weights), "bf16")
    if weights != "bf16" and not is_quantisable(dtype, device):
        raise InvalidRequest(
            f"weights {weights} run on the CPU with dtype bfloat16, not on {device} with {dtype}; "
            "leave those options out, or choose bf16",
            "weights",
        )
    return weights


def _activations(options: Options, weights: Weights) -> Activations:
    known: tuple[Requested, ...] = ("auto", *get_args(Activations))
    requested = choice("activations", options.activations, known, "auto")
    if weights not in (possible := WITH_ACTIVATIONS[requested]):
        raise InvalidRequest(
            f"activations {requested} need weights {' or '.join(possible)}; set weights, or choose 16-bit",
            "activations",
        )
    if requested != "auto":
        return requested
    return "int8" if weights != "bf16" and multiplies_int8(instructions()) else "16-bit"


def is_quantisable(dtype: DType, device: str) -> bool:
    return (dtype, device) == ("bfloat16", "cpu")


def _graphs(options: Options, device: str) -> Graphs:
    requested = choice("graphs", options.graphs, ("auto", "compiled", "background", "off"), "auto")
    if requested == "off":
        return "off"
    missing = missing_for_graphs()
    if missing and requested == "compiled":
        raise InvalidRequest(f"graphs cannot be compiled: {missing}; or choose graphs off", "graphs")
    if device != "cpu":
        return "compiled"  # a GPU captures a step even if it is not compiled
    if missing:
        return "off"
    return "background" if requested == "background" else "compiled"


def _threads(requested: int | None, ranks: int) -> int:
    """Return the number of threads of a rank. Raises InvalidRequest for many more than there are cores to run them."""
    cores = max(1, default_threads() // ranks)
    most = max(MOST_THREADS, THREADS_PER_CORE * cores)
    return at_least(1, "threads", requested, cores, most, f"because this process may use {cores} cores")


def default_threads() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
