"""Report: the memory of one model, full cache against compressed, as rows for a table or for JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ringkv.base.budgets import check_budget
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.page_counts import entries_read
from ringkv.base.ranks import AttentionParallel
from ringkv.base.wanted import Start
from ringkv.models.config import load_config, parse_config
from ringkv.plan.attention_parallel import attention_parallel
from ringkv.plan.choose_kv import whole_pages
from ringkv.plan.divided_slots import DividedSlots, Machine, divided_slots, is_divided
from ringkv.plan.expert_costs import ExpertCosts, expert_costs
from ringkv.plan.footprint import (
    SERVED,
    Footprint,
    Staged,
    file_bytes,
    host_bytes,
    read_bytes,
    sampler_bytes,
    slot_bytes,
    staging_bytes,
    step_bytes,
    token_bytes,
    weight_bytes,
    window_bytes,
)
from ringkv.plan.in_chunks import DEFAULT_CHUNK, in_chunks
from ringkv.plan.kv_settings import SlotSettings
from ringkv.plan.prefill_workspace import prefill_workspace
from ringkv.plan.shapes import Shape, known
from ringkv.plan.slot_format import slot_format, with_residents
from ringkv.plan.stored_bits import of_gguf_types, stored_as


@dataclass(frozen=True)
class PlanRequest(SlotSettings):
    """What to plan for. Bytes, memory and bandwidth are those of one of `tensor_parallel` ranks.

    The settings are those of the compressed cache. The full cache has its format, and neither pages nor reviews.
    """

    tokens: int | None = None  # longest prompt plus output; None is the model's context
    prompt_tokens: int | None = None  # longest prompt; None is `tokens`
    prefill_workspace: int | None = None  # staged tokens of one prompt at most; None, or a full cache: `prompt_tokens`
    kv: KVChoice = KVChoice()  # noqa: RUF009 - frozen; of the compressed cache, without its budget
    budget: int = 2048  # entries of a compressed slot, or with arkvale those that a step reads
    lanes: int = 1  # prompts staged at once
    chunk: int = DEFAULT_CHUNK  # tokens of a prefill pass, which layers with a sliding window stage beside the window
    tensor_parallel: int = 1
    attention_parallel: AttentionParallel | None = None  # None is "slots" for latent attention, else "heads"
    device: str = "cpu"
    dtype: str = "bfloat16"  # of keys and values
    weights_dtype: str | None = None  # a dtype, int8 or int4; None is the dtype of the published weights
    memory: int | None = None  # bytes; None reports no slots that fit
    bandwidth: int | None = None  # bytes per second; None reports no times
    reserve: int = 0  # bytes kept free for everything but weights, cache and sampler


@dataclass(frozen=True)
class CachePlan:
    """Figures of a full or a compressed cache; bytes are those of one rank, slots those of all ranks."""

    cache: str  # "full", "compressed", or "arkvale", which keeps every token
    entries: int  # per slot
    slot_bytes: int  # in memory
    file_bytes: int  # of a slot in files
    host_bytes: int  # of a slot in the host's memory beside a GPU
    slots: int | None  # that fit beside weights, staging and reserve, sampler included; None if no memory was given
    total_bytes: int  # with those slots, or with one if no memory was given
    step_bytes: int  # least bytes that a decode step of those slots reads, of experts those that so many choose
    step_seconds: float | None  # floor of a decode step at the given bandwidth
    tokens_per_second: float | None  # of all slots together, at that floor


class Cache(NamedTuple):
    """A full or a compressed cache. entries: of a slot of `shape`. read: those that a step reads, if in pages."""

    name: str
    shape: Shape
    entries: int
    read: int
    staged: Staged


@dataclass(frozen=True)
class Report:
    model: str
    parameters: int
    dtype: str
    kv_format: str
    weights_dtype: str
    tensor_parallel: int
    attention_parallel: AttentionParallel
    tokens: int
    prompt_tokens: int
    staged_tokens: int  # of one prompt at most
    lanes: int
    memory: int | None
    token_bytes: int  # of a staged token
    window_layers: int  # layers with a sliding window
    window_bytes: int  # per slot, of these layers; the same in both caches
    weight_bytes: int
    served_bytes: Mapping[str, int]  # of the weights as `ringkv serve --weights` can hold them
    reserve: int
    staging_bytes: int
    sampler_bytes: int  # per slot
    rows: tuple[CachePlan, ...]
    experts: ExpertCosts | None  # for the slots of the compressed cache, or one if no memory was given
    divided: tuple[DividedSlots, ...]  # of ranks with latents in a given memory


def find_shape(model: str) -> Shape:
    """The shape of a directory in Hugging Face layout, of a GGUF file, or of a name that `known` takes.

    Raises `UnknownModel`; for a file `BadWeights` and `UnsupportedModel`.
    """
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return replace(Shape.of(load_config(path), path.resolve().name), int8=stored_as(path, "int8"))
    if path.suffix == ".gguf" and path.is_file():
        return _of_gguf(path)
    return known(model)


def _of_gguf(path: Path) -> Shape:
    """The shape that a file's metadata describes, of the bfloat16 model that it is converted to."""
    from ringkv.weights.gguf.config import config_json
    from ringkv.weights.gguf.file import GGUF
    from ringkv.weights.gguf.split import set_name

    gguf = GGUF(path)
    types = {gguf.kind(name) for name in gguf.names if name.startswith("blk.")}
    return replace(Shape.of(parse_config(config_json(gguf)), set_name(path)), int8=of_gguf_types(types))


def report(shape: Shape, request: PlanRequest) -> Report:
    """Plan a shape. Raises `InvalidRequest` for a field that is out of range for it."""
    tokens = shape.context if request.tokens is None else request.tokens
    prompt = tokens if request.prompt_tokens is None else request.prompt_tokens
    _check(shape, request, tokens, prompt)
    parallel = _attention_parallel(shape, request)
    weights_dtype = request.weights_dtype or shape.native
    stored = _stored(shape, weights_dtype)
    weights = weight_bytes(shape, stored, request.tensor_parallel)
    sampler = sampler_bytes(shape.vocab)

    def row(cache: Cache) -> CachePlan:
        sizes = cache.entries, request.dtype, request.tensor_parallel
        slot, in_files = slot_bytes(cache.shape, *sizes), file_bytes(cache.shape, *sizes)
        staging = staging_bytes(shape, cache.staged, request.dtype, request.tensor_parallel)
        slot_ranks = request.tensor_parallel if parallel == "slots" else 1
        host = host_bytes(cache.shape, *sizes)
        need = Footprint(slot, weights, staging, request.reserve, sampler=sampler, slot_ranks=slot_ranks, host=host)
        slots = None if request.memory is None else need.slots_in(request.memory)
        step = step_bytes(cache.shape, cache.entries, cache.read, request.dtype, request.tensor_parallel)
        read = read_bytes(shape, stored, request.tensor_parallel, slots or 1)
        read += replace(need, slot=step).entries(1 if slots is None else slots)
        return _row(cache, slots, need, in_files, read, request.bandwidth)

    full, compressed = _full(shape, request, tokens, prompt), _compressed(shape, request, tokens, prompt)
    rows = row(full), row(compressed)
    return Report(
        model=shape.name,
        parameters=shape.parameters,
        dtype=request.dtype,
        kv_format=request.kv_format or "plain",
        weights_dtype=weights_dtype,
        tensor_parallel=request.tensor_parallel,
        attention_parallel=parallel,
        tokens=tokens,
        prompt_tokens=prompt,
        staged_tokens=compressed.staged.tokens // request.lanes,
        lanes=request.lanes,
        memory=request.memory,
        token_bytes=token_bytes(shape, request.dtype, request.tensor_parallel),
        window_layers=sum(len(group.layers) for group in shape.groups if group.window is not None),
        window_bytes=window_bytes(shape, request.dtype, request.tensor_parallel),
        weight_bytes=weights,
        served_bytes={one: weight_bytes(shape, _stored(shape, one), request.tensor_parallel) for one in SERVED},
        reserve=request.reserve,
        staging_bytes=staging_bytes(shape, compressed.staged, request.dtype, request.tensor_parallel),
        sampler_bytes=sampler,
        rows=rows,
        experts=_experts(shape, stored, request, rows[-1]),
        divided=_divided(shape, stored, request),
    )


def _full(shape: Shape, request: PlanRequest, tokens: int, prompt: int) -> Cache:
    """Return the cache of a server that keeps every token."""
    settings = SlotSettings(kv_format=request.kv_format, kv_format_skip=request.kv_format_skip)
    kv = replace(request.kv, policy="full", heads="equal")
    slots = slot_format(shape, settings, kv, Start(ranks=request.tensor_parallel))
    staged = _staged(shape, request, kv, prompt, None)
    return Cache("full", shape.with_slots(slots), tokens, tokens, staged)


def _compressed(shape: Shape, request: PlanRequest, tokens: int, prompt: int) -> Cache:
    """Return the cache of a server that was started with the requested settings."""
    start = Start(0, request.tensor_parallel, request.device, request.kv_tier)
    slots = slot_format(shape, request, request.kv, start)
    check_budget(request.kv, request.budget)
    staged = _staged(shape, request, request.kv, prompt, request.prefill_workspace)
    if slots.pages:
        every = min(shape.context, staged.tokens // request.lanes + tokens - prompt)  # the prompt in whole chunks
        entries = whole_pages(every, slots.pages.size)
    else:
        entries = tokens if request.kv.policy == "full" else min(request.budget, tokens)
    kv = replace(request.kv, budget=request.budget)
    slots = with_residents(slots, request.kv_tier, request.device, kv, entries)
    name, page = (kv.policy, slots.pages.size) if slots.pages else ("compressed", 0)
    return Cache(name, shape.with_slots(slots), entries, entries_read(kv, entries, page), staged)


def _staged(shape: Shape, request: PlanRequest, kv: KVChoice, prompt: int, workspace: int | None) -> Staged:
    """Return what a server stages of prompts of up to so many tokens, without room for short ones beside them."""
    chunk, longest = in_chunks(prompt, shape.context, request.chunk, workspace)
    size = prefill_workspace(workspace, shape.groups, kv, longest, chunk)
    return Staged(request.lanes * (size or longest), request.lanes, chunk, kv.window, size > 0)


def _stored(shape: Shape, weights: str) -> str:
    return shape.int8 if weights == "int8" else weights


def _experts(shape: Shape, stored: str, request: PlanRequest, row: CachePlan) -> ExpertCosts | None:
    if shape.experts is None:
        return None
    return expert_costs(shape.experts, stored, request.tensor_parallel, row.slots or 1)


def _divided(shape: Shape, stored: str, request: PlanRequest) -> tuple[DividedSlots, ...]:
    if request.memory is None or not is_divided(shape, request.tensor_parallel):
        return ()
    machine = Machine(request.tensor_parallel, request.memory, request.reserve, stored)
    return divided_slots(shape, machine, request.dtype)


def _row(
    cache: Cache, slots: int | None, need: Footprint, in_files: int, step: int, bandwidth: int | None
) -> CachePlan:
    shown = 1 if slots is None else slots
    seconds = step / bandwidth if bandwidth else None
    return CachePlan(
        cache=cache.name,
        entries=cache.entries,
        slot_bytes=need.slot,
        file_bytes=in_files,
        host_bytes=need.host,
        slots=slots,
        total_bytes=need.total(shown),
        step_bytes=step,
        step_seconds=seconds,
        tokens_per_second=shown / seconds if seconds else None,
    )


def _attention_parallel(shape: Shape, request: PlanRequest) -> AttentionParallel:
    parallel = attention_parallel(request.attention_parallel, shape.has_latents, request.tensor_parallel)
    if parallel == "slots" and not shape.has_latents:
        raise InvalidRequest(
            f"attention_parallel slots is for latent attention; {shape.name} has none, so choose heads",
            "attention_parallel",
        )
    return parallel


def _check(shape: Shape, request: PlanRequest, tokens: int, prompt: int) -> None:
    for name, value, top in (
        ("tokens", tokens, shape.context),
        ("prompt_tokens", prompt, tokens),
        ("prefill_workspace", request.prefill_workspace, None),
        ("budget", request.budget, None),
        ("lanes", request.lanes, None),
        ("chunk", request.chunk, None),
        ("tensor_parallel", request.tensor_parallel, None),
        ("memory", request.memory, None),
        ("bandwidth", request.bandwidth, None),
    ):
        if value is None:
            continue
        if value < 1:
            raise InvalidRequest(f"{name} is {value}; it must be at least 1", name)
        if top is not None and value > top:
            raise InvalidRequest(f"{name} is {value:,}; {shape.name} takes at most {top:,} here", name)
