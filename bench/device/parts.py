"""parts: the parts of the device benchmark. Each runs in its own process with a time limit and writes a journal."""

import time
from collections.abc import Callable
from statistics import median

import torch

from bench.device.blocks import blocks
from bench.device.made import Write, engine_config, fill, make_engine, seconds_of, settle
from bench.device.scale import Scale
from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.engine import prefill as prefill_prompt
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.bench.probe import read_cases
from ringkv.engine.engine import LocalEngine
from ringkv.plan import floor
from ringkv.plan.report import CachePlan, PlanRequest, report
from ringkv.plan.shapes import Shape

Part = Callable[[Scale, Write, str], None]
"""Takes the scale, the journal, and the part's name after its colon."""

CHUNK = 2048  # prompt tokens; for engines that do not prefill


@torch.inference_mode()
def probe(scale: Scale, write: Write, _: str) -> None:
    """Measure bandwidth by several ways to stream through memory."""
    device = scale.torch_device
    write("memory", free=scale.free_memory())
    for way in read_cases(scale.probe_bytes, device):
        write("bandwidth", way=way.name, rate=way.amount / seconds_of(way.run, device, repeats=8))


def decode(scale: Scale, write: Write, name: str) -> None:
    """Measure steps of an engine with the planned number of slots. name: `full/inductor/plain`, `8192/eager/int4`."""
    which, backend, kv_format = name.split("/")
    policy, budget = ("full", scale.prompt) if which == "full" else ("snapstream", int(which))
    row = planned(scale, budget, kv_format=kv_format)[policy]
    slots = row.slots or 1
    config = engine_config(scale, policy, budget, slots, min(CHUNK, scale.prompt), kv_format)
    began = time.perf_counter()
    engine = make_engine(scale, config, backend, ("decode-", "head-", "sample-temperature"))
    live = fill(engine, scale.prompt, scale.steps)
    settle(scale.torch_device)
    built = time.perf_counter() - began
    taken = [_step(engine) for _ in range(scale.steps)][scale.steps // 4 :]
    need = floor.step(scale.config, slots, live, engine.limits.entry_bytes, scale.dtype)
    write(
        "decode",
        cache=policy,
        budget=budget,
        backend=backend,
        kv_format=kv_format,
        slots=slots,
        live=live,
        step_s=median(taken),
        slowest_s=max(taken),
        forward_s=seconds_of(engine.forward, scale.torch_device, repeats=2, laps=3),
        sample_s=seconds_of(engine.sample, scale.torch_device, repeats=2, laps=3),
        need_bytes=need.bytes,
        built_s=built,
        peak_bytes=_peak(scale.torch_device),
    )


def _step(engine: LocalEngine) -> float:
    """Return the seconds to compute one token for every slot and read it on the host."""
    started = time.perf_counter()
    engine.sample().read()
    engine.forward()
    settle(engine.batch.device)
    return time.perf_counter() - started


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def prefill(scale: Scale, write: Write, name: str) -> None:
    """Measure prefill, and compression with insertion, for each prompt length and chunk. name: `inductor`."""
    model = scale.config
    for tokens, chunk in scale.prefills:
        config = engine_config(scale, "snapstream", min(scale.budgets), 1, chunk)
        engine = make_engine(scale, config, name, ("prefill-",))
        ids = tuple(torch.randint(3, model.vocab_size, (tokens - 1,)).tolist())
        request = Request("r", ids, SamplingParams(max_tokens=1))
        for warm in (True, False):
            part = Request("w", ids[: 2 * chunk], SamplingParams(max_tokens=1)) if warm else request
            settle(scale.torch_device)
            started = time.perf_counter()
            prefill_prompt(engine, part)
            settle(scale.torch_device)
            prefilled = time.perf_counter()
            engine.insert(0, 0, part)
            settle(scale.torch_device)
            done = time.perf_counter()
        need = floor.prefill(model, tokens, engine.limits.entry_bytes, scale.dtype)
        write(
            "prefill",
            tokens=tokens,
            chunk=chunk,
            backend=name,
            s=prefilled - started,
            compress_s=done - prefilled,
            operations=need.operations,
            peak_bytes=_peak(scale.torch_device),
        )
        del engine
        if scale.torch_device.type == "cuda":
            torch.cuda.empty_cache()


def planned(scale: Scale, budget: int, bandwidth: int = 1, kv_format: PlaneFormat = "plain") -> dict[str, CachePlan]:
    """Return `ringkv plan`'s rows for a full cache and this budget in free memory. Times need a bandwidth."""
    shape = Shape.of(scale.config, scale.model)
    request = PlanRequest(
        tokens=scale.prompt,
        kv_budget=budget,
        dtype=scale.dtype,
        kv_format=kv_format,
        weights=scale.dtype,
        memory=scale.free_memory(),
        bandwidth=bandwidth,
        reserve=scale.reserve,
    )
    full, compressed = report(shape, request).rows
    return {"full": full, "snapstream": compressed}


PARTS: dict[str, Part] = {"probe": probe, "blocks": blocks, "decode": decode, "prefill": prefill}
