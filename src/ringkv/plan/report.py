"""Report: the memory of one model, full cache against compressed, as rows for a table or for JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.page_counts import entries_read
from ringkv.base.ranks import AttentionParallel
from ringkv.base.wanted import Start
from ringkv.models.config import load_config, parse_config
from ringkv.plan.checks import at_least, attention_parallel
from ringkv.plan.choose_kv import choose_kv, whole_pages
from ringkv.plan.engine_footprint import reserve_on
from ringkv.plan.footprint import (
    SERVED,
    Footprint,
    StagedPrompts,
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
from ringkv.plan.options import Options
from ringkv.plan.prefill_workspace import DEFAULT_CHUNK, in_chunks, prefill_workspace
from ringkv.plan.rank_costs import DividedSlots, ExpertCosts, RankMachine, divided_slots, expert_costs
from ringkv.plan.shapes import Shape, known
from ringkv.plan.slot_format import slot_format, with_residents
from ringkv.plan.stored_bits import of_gguf_types, stored_as
from ringkv.plan.units import parse_bytes


@dataclass(frozen=True)
class PlanRequest(Options):
    """What to plan for: a server's options, and a machine. Bytes, memory and bandwidth are those of one rank.

    The settings are those of the compressed cache. The full cache has its format, and neither pages nor reviews.
    tokens: longest prompt plus output. Default: the model's context. prompt_tokens: longest prompt. Default: `tokens`.
    dtype: of keys and values, float8 too. weights: a dtype too. Default: the dtype of the published weights.
    memory: such as "80GB". None reports no slots that fit. bandwidth: bytes per second. None reports no times.
    reserve: bytes kept free for everything but weights, cache and sampler. Default: what a server reserves.
    """

    tokens: int | None = None
    memory: str | int | None = None
    bandwidth: str | int | None = None
    reserve: str | int | None = None


@dataclass(frozen=True)
class PlanSizes:
    """What a request asks for, with what it leaves open filled in."""

    tokens: int
    prompt_tokens: int
    lanes: int
    chunk: int
    tensor_parallel: int
    dtype: str
    memory: int | None
    bandwidth: int | None
    reserve: int

    @classmethod
    def of(cls, shape: Shape, request: PlanRequest) -> "PlanSizes":
        """Raises `InvalidRequest` for a field that is out of range for the shape."""
        tokens = at_least(1, "tokens", request.tokens, shape.context, shape.context, f"the context of {shape.name}")
        prompt = at_least(1, "prompt_tokens", request.prompt_tokens, tokens, tokens, "the longest request")
        reserve = request.reserve
        return cls(
            tokens,
            prompt,
            at_least(1, "lanes", request.lanes, 1),
            at_least(1, "chunk", request.chunk, DEFAULT_CHUNK),
            at_least(1, "tensor_parallel", request.tensor_parallel, 1),
            request.dtype or "bfloat16",
            _bytes("memory", request.memory),
            _bytes("bandwidth", request.bandwidth),
            reserve_on(request.device or "cpu") if reserve is None else parse_bytes(reserve, "reserve"),
        )


def _bytes(name: str, size: str | int | None) -> int | None:
    return None if size is None else at_least(1, name, parse_bytes(size, name), 1)


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


class PlannedCache(NamedTuple):
    """A full or a compressed cache. entries: of a slot of `shape`. read: those that a step reads, if in pages."""

    name: str
    shape: Shape
    entries: int
    read: int
    staged: StagedPrompts


@dataclass(frozen=True)
class Report(PlanSizes):
    model: str
    parameters: int
    kv_format: str
    weights_dtype: str
    attention_parallel: AttentionParallel
    staged_tokens: int  # of one prompt at most
    token_bytes: int  # of a staged token
    window_layers: int  # layers with a sliding window
    window_bytes: int  # per slot, of these layers; the same in both caches
    weight_bytes: int
    served_bytes: Mapping[str, int]  # of the weights as `ringkv serve --weights` can hold them
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
    sizes = PlanSizes.of(shape, request)
    ranks, dtype = sizes.tensor_parallel, sizes.dtype
    parallel = attention_parallel(request.attention_parallel, shape.has_latents, ranks)
    if parallel == "slots" and not shape.has_latents:
        raise InvalidRequest(
            f"attention_parallel slots is for latent attention; {shape.name} has none, so choose heads",
            "attention_parallel",
        )
    weights_dtype = request.weights or shape.native
    stored = _stored(shape, weights_dtype)
    weights, sampler = weight_bytes(shape, stored, ranks), sampler_bytes(shape.vocab)

    def row(cache: PlannedCache) -> CachePlan:
        size = cache.entries, dtype, ranks
        need = Footprint(
            slot=slot_bytes(cache.shape, *size),
            weights=weights,
            staging=staging_bytes(shape, cache.staged, dtype, ranks),
            reserve=sizes.reserve,
            sampler=sampler,
            slot_ranks=ranks if parallel == "slots" else 1,
            host=host_bytes(cache.shape, *size),
        )
        slots = None if sizes.memory is None else need.slots_in(sizes.memory)
        shown = 1 if slots is None else slots
        step = step_bytes(cache.shape, cache.entries, cache.read, dtype, ranks)
        read = read_bytes(shape, stored, ranks, slots or 1) + replace(need, slot=step).entries(shown)
        seconds = read / sizes.bandwidth if sizes.bandwidth else None
        return CachePlan(
            cache=cache.name,
            entries=cache.entries,
            slot_bytes=need.slot,
            file_bytes=file_bytes(cache.shape, *size),
            host_bytes=need.host,
            slots=slots,
            total_bytes=need.total(shown),
            step_bytes=read,
            step_seconds=seconds,
            tokens_per_second=shown / seconds if seconds else None,
        )

    kv = choose_kv(request, sizes.prompt_tokens, shape.context)
    full, compressed = _full(shape, request, kv, sizes), _compressed(shape, request, kv, sizes)
    rows = row(full), row(compressed)
    machine = sizes.memory and RankMachine(ranks, sizes.memory, sizes.reserve, stored)
    return Report(
        **vars(sizes),
        model=shape.name,
        parameters=shape.parameters,
        kv_format=request.kv_format or "plain",
        weights_dtype=weights_dtype,
        attention_parallel=parallel,
        staged_tokens=compressed.staged.tokens // sizes.lanes,
        token_bytes=token_bytes(shape, dtype, ranks),
        window_layers=sum(len(group.layers) for group in shape.groups if group.window is not None),
        window_bytes=window_bytes(shape, dtype, ranks),
        weight_bytes=weights,
        served_bytes={name: weight_bytes(shape, _stored(shape, name), ranks) for name in SERVED},
        staging_bytes=staging_bytes(shape, compressed.staged, dtype, ranks),
        sampler_bytes=sampler,
        rows=rows,
        experts=expert_costs(shape.experts, stored, ranks, rows[-1].slots or 1) if shape.experts else None,
        divided=divided_slots(shape, machine, dtype) if machine else (),
    )


def _full(shape: Shape, request: PlanRequest, kv: KVChoice, sizes: PlanSizes) -> PlannedCache:
    """Return the cache of a server that keeps every token."""
    settings = Options(kv_format=request.kv_format, kv_format_skip=request.kv_format_skip)
    kv = replace(kv, policy="full", heads="equal")
    slots = slot_format(shape, settings, kv, Start(ranks=sizes.tensor_parallel))
    return PlannedCache("full", shape.with_slots(slots), sizes.tokens, sizes.tokens, _staged(shape, kv, sizes, None))


def _compressed(shape: Shape, request: PlanRequest, kv: KVChoice, sizes: PlanSizes) -> PlannedCache:
    """Return the cache of a server that was started with the requested settings."""
    device = request.device or "cpu"
    slots = slot_format(shape, request, kv, Start(0, sizes.tensor_parallel, device, request.kv_tier))
    staged = _staged(shape, kv, sizes, request.prefill_workspace)
    if slots.pages:
        output = sizes.tokens - sizes.prompt_tokens
        entries = min(shape.context, staged.tokens // sizes.lanes + output)  # the prompt in whole chunks
        entries = whole_pages(entries, slots.pages.size)
    else:
        entries = sizes.tokens if kv.policy == "full" else min(kv.budget or 0, sizes.tokens)
    slots = with_residents(slots, request.kv_tier, device, kv, entries)
    name, page = (kv.policy, slots.pages.size) if slots.pages else ("compressed", 0)
    return PlannedCache(name, shape.with_slots(slots), entries, entries_read(kv, entries, page), staged)


def _staged(shape: Shape, kv: KVChoice, sizes: PlanSizes, workspace: int | None) -> StagedPrompts:
    """Return what a server stages of the longest prompts, without room for short ones beside them."""
    chunk, longest = in_chunks(sizes.prompt_tokens, shape.context, sizes.chunk, workspace)
    size = prefill_workspace(workspace, shape.groups, kv, longest, chunk)
    return StagedPrompts(sizes.lanes * (size or longest), sizes.lanes, chunk, kv.window, size > 0)


def _stored(shape: Shape, weights: str) -> str:
    return shape.int8 if weights == "int8" else weights
