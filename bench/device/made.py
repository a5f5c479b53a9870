"""made: an engine of a given shape with random weights, slots full of random entries, and what they take."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from bench.device.scale import Scale
from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.config import EngineConfig
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.cache.layouts import layouts
from ringkv.engine.build import assemble
from ringkv.engine.engine import LocalEngine
from ringkv.engine.load import ModelWeights
from ringkv.graphs.graph import Backend, Eager, Graph, StaticFunction
from ringkv.graphs.inductor import Inductor
from ringkv.models.config import ModelConfig
from ringkv.models.weights import Declared
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve

ANY_MEMORY = 1 << 50  # bytes; the number of slots is already planned


class Write(Protocol):
    """Writes a figure of a kind to the journal, and prints it."""

    def __call__(self, kind: str, **figure: Any) -> None: ...


def engine_config(
    scale: Scale, policy: str, budget: int, slots: int, chunk: int, kv_format: PlaneFormat = "plain"
) -> EngineConfig:
    cache: dict[str, Any] = {"kv_policy": policy} | ({} if policy == "full" else {"kv_budget": budget})
    options = Options(
        **cache,
        slots=slots,
        prompt_tokens=scale.prompt,
        chunk=chunk,
        kv_format=kv_format,
        device=scale.device,
        dtype=scale.dtype,  # type: ignore[arg-type]
    )
    return resolve(Path(scale.model), scale.config, options, ANY_MEMORY)


class Only:
    """Compiles the graphs whose names begin with one of `prefixes`. The others are eager and never run by the part."""

    def __init__(self, backend: Backend, prefixes: tuple[str, ...]) -> None:
        self._backend, self._prefixes = backend, prefixes

    @property
    def builds(self) -> int:
        return self._backend.builds

    def make(self, name: str, function: StaticFunction, example: Sequence[torch.Tensor]) -> Graph:
        backend = self._backend if name.startswith(self._prefixes) else Eager()
        return backend.make(name, function, example)


@torch.inference_mode()
def make_engine(scale: Scale, config: EngineConfig, backend: str, graphs: tuple[str, ...]) -> LocalEngine:
    """graphs: beginnings of the names of the graphs that will run; only these are compiled."""
    model, device = scale.config.with_slots(config.slot_format), scale.torch_device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    weights = _random_weights(model, getattr(torch, scale.dtype), device)
    return assemble(config, model, weights, Only(_backend(config, backend), graphs))


def _backend(config: EngineConfig, name: str) -> Backend:
    if name == "eager":
        return Eager()
    return Inductor(config.cache_dir / "inductor", lambda graph: print(f"  compiling {graph}", flush=True))


def _random_weights(model: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    def made(declared: Declared) -> dict[str, torch.Tensor]:
        return {name: _random(name, weight.shape) for name, weight in declared.items()}

    def _random(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        weight = torch.empty(shape, dtype=dtype, device=device)
        return weight.fill_(1.0) if "norm" in name else weight.normal_(std=0.02)

    layers = [made(model.layer_weights(i)) for i in range(model.num_layers)]
    return ModelWeights(made(model.shared_weights()), layers)


def make_random(stored: torch.Tensor) -> None:
    """Overwrite a plane with random numbers; zeros would be read and multiplied faster on some GPUs."""
    if stored.is_floating_point():
        stored.normal_()
    else:
        stored.view(torch.int8).random_(-128, 128)


@torch.inference_mode()
def fill(engine: LocalEngine, prompt: int, steps: int) -> int:
    """Fill every slot as after a prompt, with random keys and values. Returns the live entries of a slot."""
    limits = engine.limits
    for body in engine.batch.bodies:
        for plane in body.planes:
            for layer in plane:
                make_random(layer)
    # A full cache has no entries beyond its capacity, so its prompt leaves `steps` of them free.
    seen = min(prompt, limits.capacity - steps) if engine.default_kv.policy == "full" else prompt - steps
    plans = layouts(engine.default_kv, seen, limits.capacity, engine.lanes.groups)
    request = Request("r", (1,), SamplingParams(max_tokens=10**6, temperature=1.0, ignore_eos=True))
    for slot in range(limits.slots):
        engine.batch.place(slot, plans, engine.batch.logits[slot], request)
    return plans[0].live(seen + steps // 2)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int, laps: int = 5) -> float:
    """Return one call's seconds: the median over `laps` of `repeats` calls in a row, after a warm-up call."""
    work()
    return median(_lap(work, device, repeats) for _ in range(laps)) / repeats


def _lap(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
