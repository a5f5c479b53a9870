"""profile: time by operator of one prefill and some decode steps, measured with torch's profiler.

Open the trace with chrome://tracing or ui.perfetto.dev. Time outside of operators is in the fused loops of compiled
graphs and in Python; `--graphs off` splits the loops into operators.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine, prefill
from ringkv.base.progress import Progress, silent
from ringkv.bench.pair import Workload
from ringkv.bench.round import decode, make_request, run_round
from ringkv.engine.build import build
from ringkv.text.repeat_words import repeat_words

WARM_UP = 3  # output tokens before the profiler starts
TOP = 12  # operators listed for each phase
PREFILL, COMPRESS, DECODE = PHASES = ("ringkv: prefill", "ringkv: compress", "ringkv: decode")


@dataclass(frozen=True)
class Operator:
    """One operator within a phase."""

    name: str
    calls: int
    seconds: float  # without the operators that it calls; on a device, device time
    share: float  # of the phase


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: float
    operators: tuple[Operator, ...]  # the longest; time outside of operators is listed under the phase's name


@dataclass(frozen=True)
class Profile:
    trace: Path
    phases: tuple[Phase, ...]


def profile(config: EngineConfig, workload: Workload, trace: Path, progress: Progress = silent) -> Profile:
    """Profile one prompt and its decode steps in all slots.

    `trace`, in a folder that is writable, is moved into place when it is complete.
    """
    engine = build(config, progress, partial(repeat_words, config.model_dir))
    progress(0, 0, "warming up")
    run_round(engine, min(workload.prompt_tokens, engine.limits.chunk + 1), WARM_UP)
    progress(0, 0, "profiling")
    on_device = config.device != "cpu"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    with torch.profiler.profile(activities=kinds) as profiler:
        run_phases(engine, workload)
    progress(0, 0, "writing the trace")
    with TemporaryDirectory(dir=trace.parent) as folder:
        made = Path(folder) / trace.name
        profiler.export_chrome_trace(str(made))
        os.replace(made, trace)
    return Profile(trace, phases(profiler.events() or (), on_device))


def run_phases(engine: Engine, workload: Workload) -> None:
    """Prefill one prompt, compress it and decode it in all slots, each under the name of its phase."""
    request = make_request(engine.limits.vocab, workload.prompt_tokens, workload.output_tokens)
    with record_function(PREFILL):
        prefill(engine, request)
    with record_function(COMPRESS):
        engine.compress(0, engine.default_kv)
    with record_function(DECODE):
        decode(engine, request, workload.output_tokens - 1)


def phases(events: Iterable[Any], on_device: bool) -> tuple[Phase, ...]:
    """Sum the profiler's events by phase and operator, longest first."""
    taken: Mapping[str, Counter[str]] = {name: Counter() for name in PHASES}
    calls: Mapping[str, Counter[str]] = {name: Counter() for name in PHASES}
    for event in events:
        phase = _root(event)
        if phase in taken:
            micros = event.self_device_time_total if on_device else event.self_cpu_time_total
            taken[phase][event.name] += micros
            calls[phase][event.name] += 1
    return tuple(_phase(name, taken[name], calls[name]) for name in PHASES)


def _root(event: Any) -> str:
    while event.cpu_parent is not None:
        event = event.cpu_parent
    return str(event.name)


def _phase(name: str, taken: Counter[str], calls: Counter[str]) -> Phase:
    total = max(sum(taken.values()), 1e-9)
    operators = (
        Operator(operator, calls[operator], micros / 1e6, micros / total) for operator, micros in taken.most_common(TOP)
    )
    return Phase(name, total / 1e6, tuple(operators))
