"""resolve: completes users' options into an EngineConfig that fits in memory, or several that fit together."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn, get_args

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.config import DType, EngineConfig, Graphs, Weights
from ringkv.base.errors import DoesNotFit, InvalidRequest
from ringkv.base.kv import BLOCK
from ringkv.machine.compiler import missing_for_graphs
from ringkv.machine.paths import cache_dir
from ringkv.models.config import ModelConfig
from ringkv.plan.checks import at_least, one_of
from ringkv.plan.choose_kv import choose_kv
from ringkv.plan.footprint import Footprint, item_bytes, sampler_bytes, token_bytes, weight_bytes
from ringkv.plan.options import AUTO, Options
from ringkv.plan.places import Place, needs
from ringkv.plan.shapes import Shape
from ringkv.plan.units import parse_bytes, show_bytes

DEFAULT_CHUNK = 512
DEFAULT_CHUNK_ON_GPU = 2048  # a smaller chunk is bound by kernel launches
DEFAULT_PROMPT = 32768
USUAL_STORE = 10**9
SMALLEST_PROMPT = 2048  # a default prompt limit is not lowered below this to make it fit
MOST_DRAFTS = 7
MOST_THREADS, THREADS_PER_CORE = 16, 4  # the larger bound counts
RESERVE = 1 << 30  # the interpreter, torch, graphs and activations


class Wanted(NamedTuple):
    """A model, and what its user asks of its engine."""

    model_dir: Path
    config: ModelConfig
    options: Options


def resolve(
    model_dir: Path, config: ModelConfig, options: Options, memory_bytes: int, device_bytes: int | None = None
) -> EngineConfig:
    """Complete the options for an engine that may use `memory_bytes` of the host's memory in all.

    device_bytes: how much of a GPU's memory it may use, if it runs there; None if that is unknown, or for a CPU.

    The default prompt limit is the model's context, at most `DEFAULT_PROMPT`. If the engine does not fit, an "auto"
    prefix store is dropped first, then the default prompt limit is halved until the engine fits.
    Raises `InvalidRequest` naming the option at fault, `BudgetTooSmall`, and `DoesNotFit` with the bytes needed, the
    bytes available and what would fit.
    """
    return resolve_all([Wanted(model_dir, config, options)], memory_bytes, device_bytes)[0]


def resolve_all(wanted: Sequence[Wanted], memory_bytes: int, device_bytes: int | None = None) -> list[EngineConfig]:
    """Complete the options for engines that share `memory_bytes` and one device, as `resolve` does for one.

    If they do not fit together, the one that needs most is made smaller first. Engines whose threads are left open
    share the cores: each gets an equal part, at least one.
    """
    plans = [_Plan.of(one) for one in _with_threads(wanted)]
    available: dict[Place, int] = {"host": memory_bytes}
    if device_bytes is not None:
        available["device"] = device_bytes
    while place := _short(plans, available):
        plans = _shrunk(plans, place) or _refuse(plans, place, available[place])
    return [plan.engine for plan in plans]


def _short(plans: Sequence["_Plan"], available: Mapping[Place, int]) -> Place | None:
    """Return a place where the plans do not fit together; None if they fit everywhere."""
    return next((place for place in available if sum(plan.bytes(place) for plan in plans) > available[place]), None)


@dataclass(frozen=True)
class _Plan:
    """An engine's configuration, and what it was made of."""

    wanted: Wanted
    engine: EngineConfig

    @classmethod
    def of(cls, wanted: Wanted) -> "_Plan":
        engine = _complete(*wanted)
        _refuse_small_store(wanted.config, engine, footprint(wanted.config, engine))
        return cls(wanted, engine)

    @cached_property
    def needs(self) -> Mapping[Place, Footprint]:
        config = self.wanted.config
        return needs(footprint(config, self.engine), config.groups, self.engine)

    def bytes(self, place: Place) -> int:
        return self.needs[place].total(self.engine.slots) if place in self.needs else 0

    def smaller(self, place: Place) -> "_Plan | None":
        """Return a plan that needs less there; None if it is at its smallest.

        It has no "auto" prefix store if that lies there, else a shorter prompt if staging does.
        """
        (folder, config, options), need = self.wanted, self.needs.get(place, _NOTHING)
        if need.store and options.prefix_store == AUTO and self.engine.kv.turns == "reread":
            wanted = Wanted(folder, config, replace(options, prefix_store=0))
            return _Plan(wanted, _complete(*wanted))
        engine = _smaller(self.engine, config, options) if need.staging else None
        return _Plan(self.wanted, engine) if engine else None


_NOTHING = Footprint(0, 0, 0, 0)


def _with_threads(wanted: Sequence[Wanted]) -> Sequence[Wanted]:
    if len(wanted) == 1:
        return wanted
    share = max(1, default_threads() // len(wanted))
    return [one._replace(options=replace(one.options, threads=one.options.threads or share)) for one in wanted]


def _shrunk(plans: Sequence[_Plan], place: Place) -> list[_Plan] | None:
    """Return the plans with one made smaller: the largest that can be; None if none can be."""
    for plan in sorted(plans, key=lambda one: one.bytes(place), reverse=True):
        if smaller := plan.smaller(place):
            return [smaller if one is plan else one for one in plans]
    return None


def _refuse(plans: Sequence[_Plan], place: Place, memory: int) -> NoReturn:
    where = _where(place, plans[0].engine.device)
    if len(plans) > 1:
        parts = ", ".join(f"{plan.engine.model_dir.name} {show_bytes(plan.bytes(place))}" for plan in plans)
        raise DoesNotFit(
            f"{len(plans)} models need {show_bytes(sum(plan.bytes(place) for plan in plans))} ({parts}){where}, and "
            f"{show_bytes(memory)} are available; serve fewer models, or lower slots, prefix_store or prompt_tokens"
        )
    (plan,) = plans
    raise DoesNotFit(
        _does_not_fit(plan.needs[place], plan.engine, memory, where)
        + _smaller_weights(plan.wanted.config, plan.engine, memory)
    )


def _where(place: Place, device: str) -> str:
    """Return the place as a part of a message; nothing if there is only one."""
    if device == "cpu":
        return ""
    return f" on {device}" if place == "device" else " in the host's memory"


def _refuse_small_store(config: ModelConfig, engine: EngineConfig, need: Footprint) -> None:
    block = BLOCK * _token(config, engine)
    if 0 < engine.store_bytes < block:
        raise InvalidRequest(
            f"prefix_store is {show_bytes(engine.store_bytes)}, less than a block of {BLOCK} tokens, "
            f"{show_bytes(block)}; raise it or set it to 0",
            "prefix_store",
        )
    if engine.kv.turns == "continue" and need.store < -(-need.slot // block) * block:
        raise InvalidRequest(
            f"kv_turns continue stores a slot of {show_bytes(need.slot)} for each conversation, and "
            f"prefix_store is {show_bytes(engine.store_bytes)}; raise prefix_store, or leave kv_turns out",
            "prefix_store",
        )


def _smaller(engine: EngineConfig, config: ModelConfig, options: Options) -> EngineConfig | None:
    """Return the configuration for half the prompt limit; None if the user set the limit or it is at its lowest."""
    if options.prompt_tokens is not None or engine.prompt_tokens <= SMALLEST_PROMPT:
        return None
    half = max(SMALLEST_PROMPT, engine.prompt_tokens // 2)
    half = max(half - half % engine.chunk, engine.chunk)  # rounded down to whole chunks
    found = _complete(engine.model_dir, config, replace(options, prompt_tokens=half))
    return found if found.prompt_tokens < engine.prompt_tokens else None


def footprint(config: ModelConfig, engine: EngineConfig) -> Footprint:
    """Bytes that the engine will use."""
    shape = Shape.of(config, engine.model_dir.name)
    token, item = _token(config, engine), item_bytes(engine.dtype)
    queries = config.num_layers * config.num_heads * engine.kv.window * config.head_dim * item_bytes(engine.dtype)
    return Footprint(
        slot=sum(group.stored_as(engine.kv_format).slot_bytes(engine.capacity, item) for group in config.groups),
        weights=weight_bytes(shape, engine.dtype if engine.weights == "bf16" else engine.weights),
        staging=engine.lanes * (engine.prompt_tokens * token + queries),
        reserve=RESERVE,
        store=engine.store_bytes // (BLOCK * token) * BLOCK * token,
        sampler=sampler_bytes(config.vocab_size, engine.speculate),
    )


def _token(config: ModelConfig, engine: EngineConfig) -> int:
    """Bytes of one staged token, all layers."""
    return token_bytes(Shape.of(config, engine.model_dir.name), engine.dtype)


def _complete(model_dir: Path, config: ModelConfig, options: Options) -> EngineConfig:
    device = options.device or "cpu"
    chunk, prompt_tokens = _prompt(options, config.context, device)
    dtype = _dtype(options, device)
    kv = choose_kv(options, prompt_tokens, config.context)
    assert kv.budget is not None
    return EngineConfig(
        model_dir=model_dir,
        kv=kv,
        slots=at_least(1, "slots", options.slots, 1),
        capacity=kv.budget,
        prompt_tokens=prompt_tokens,
        chunk=chunk,
        lanes=at_least(1, "lanes", options.lanes, 1),
        dtype=dtype,
        weights=_weights(options, dtype, device),
        device=device,
        graphs=_graphs(options, device),
        threads=_threads(options.threads),
        cache_dir=cache_dir(),
        store_bytes=_store(options),
        speculate=_speculate(options),
        kv_format=_kv_format(options, device),
    )


def _kv_format(options: Options, device: str) -> PlaneFormat:
    format: PlaneFormat = one_of(get_args(PlaneFormat), "kv_format", options.kv_format, "plain")
    if format != "plain" and device != "cpu":
        raise InvalidRequest(f"kv_format {format} runs on the CPU, not on {device}; choose plain", "kv_format")
    return format


def _speculate(options: Options) -> int:
    drafts = at_least(0, "speculate", options.speculate, 0)
    if drafts > MOST_DRAFTS:
        raise InvalidRequest(f"speculate is {drafts}; it must be at most {MOST_DRAFTS} tokens per step", "speculate")
    return drafts


def _store(options: Options) -> int:
    if options.prefix_store == AUTO:
        return USUAL_STORE
    return parse_bytes(options.prefix_store or 0, "prefix_store")


def _prompt(options: Options, context: int, device: str) -> tuple[int, int]:
    """Return the chunk and the prompt limit: the requested limit, rounded up to a multiple of the chunk.

    If the rounded limit exceeds the context, the chunk is made smaller so that whole chunks fit in the context. The
    limit is then below the context by less than one token per chunk.
    """
    requested = at_least(1, "prompt_tokens", options.prompt_tokens, min(context, DEFAULT_PROMPT))
    if requested > context:
        raise InvalidRequest(
            f"prompt_tokens is {requested:,}; lower it to the model's context of {context:,} tokens or less",
            "prompt_tokens",
        )
    usual = DEFAULT_CHUNK if device == "cpu" else DEFAULT_CHUNK_ON_GPU
    chunk = min(context, at_least(1, "chunk", options.chunk, usual))
    chunks = -(-requested // chunk)
    if chunks * chunk > context:
        chunk = context // chunks
    return chunk, chunks * chunk


def _dtype(options: Options, device: str) -> DType:
    """The dtype; bfloat16 by default, with half of float32's bytes and its range, so that nothing overflows."""
    dtype: DType = one_of(get_args(DType), "dtype", options.dtype, "bfloat16")
    if dtype == "float16" and device == "cpu":
        raise InvalidRequest("dtype float16 does not run on the CPU; choose bfloat16 or float32", "dtype")
    return dtype


def _weights(options: Options, dtype: DType, device: str) -> Weights:
    weights: Weights = one_of(get_args(Weights), "weights", options.weights, "bf16")
    if weights != "bf16" and not _is_quantisable(dtype, device):
        raise InvalidRequest(
            f"weights {weights} run on the CPU with dtype bfloat16, not on {device} with {dtype}; "
            "leave those options out, or choose bf16",
            "weights",
        )
    return weights


def _is_quantisable(dtype: DType, device: str) -> bool:
    return (dtype, device) == ("bfloat16", "cpu")


def _graphs(options: Options, device: str) -> Graphs:
    requested = one_of(("auto", "compiled", "off"), "graphs", options.graphs, "auto")
    if requested == "off":
        return "off"
    missing = missing_for_graphs()
    if missing and requested == "compiled":
        raise InvalidRequest(f"graphs cannot be compiled: {missing}; or choose graphs off", "graphs")
    return "off" if missing and device == "cpu" else "compiled"  # a GPU captures a step even if it is not compiled


def _threads(requested: int | None) -> int:
    """Return the number of threads. Raises InvalidRequest for many more than there are cores to run them."""
    cores = default_threads()
    most = max(MOST_THREADS, THREADS_PER_CORE * cores)
    threads = at_least(1, "threads", requested, cores)
    if threads > most:
        raise InvalidRequest(
            f"threads is {threads:,}; this process may use {cores} cores, so give at most {most}", "threads"
        )
    return threads


def default_threads() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _does_not_fit(need: Footprint, engine: EngineConfig, memory: int, where: str) -> str:
    available = f"need {show_bytes(need.total(engine.slots))}{where}, and {show_bytes(memory)} are available"
    store, reserve = show_bytes(need.store), show_bytes(need.reserve)
    if not need.weights:  # they are on a device
        remedy = "lower prefix_store" if need.store and need.reserve <= memory else "free some memory"
        return f"{store} of prefix store and {reserve} of reserve {available}; {remedy}"
    slots = need.slots_in(memory)
    problem = (
        f"{engine.slots} slots of {engine.capacity:,} entries ({show_bytes(need.slot)} each, "
        f"and {show_bytes(need.sampler)} of sampler state) "
        f"with {show_bytes(need.weights)} of weights, {show_bytes(need.staging)} of staging"
        f"{f', {store} of prefix store' if need.store else ''}"
        f" and {reserve} of reserve {available}"
    )
    return f"{problem}; {_remedy(need, slots, memory)}"


def _smaller_weights(config: ModelConfig, engine: EngineConfig, memory: int) -> str:
    """A further remedy, if 4-bit weights would make everything fit."""
    if engine.weights != "bf16" or not _is_quantisable(engine.dtype, engine.device):
        return ""
    need = footprint(config, replace(engine, weights="int4"))
    if need.total(engine.slots) > memory:
        return ""
    return f', or use weights="int4", which take {show_bytes(need.weights)}; then everything fits'


def _remedy(need: Footprint, slots: int, memory: int) -> str:
    if need.store and need.total(1) - need.store <= memory:
        return "lower prefix_store"
    if slots:
        return f"{slots} {'slot' if slots == 1 else 'slots'} would fit"
    if need.total(1) - need.staging - need.store > memory:
        return "not even one slot fits, so choose a smaller model or budget"
    return "not even one slot fits, so lower prompt_tokens"
