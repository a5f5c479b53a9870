"""compare: a full cache against a compressed one, in turn and in one run; medians, and how near the floor they come.

floor = (weights read + slots * live entries * bytes an entry) / bandwidth        no decode step can be faster
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ringkv.base.config import EngineConfig
from ringkv.base.progress import Progress, silent
from ringkv.bench.bandwidth import Probe
from ringkv.bench.pair import Pair, Workload
from ringkv.bench.round import Round, run_round
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.footprint import item_bytes
from ringkv.plan.shapes import Shape

WARM_UP = 3  # output tokens of the round that is not counted


@dataclass(frozen=True)
class Measured:
    """Medians over the rounds."""

    cache: str  # the policy
    entries: int  # that a slot may hold
    prefill_tokens_per_s: float  # one prompt alone
    first_token_s: float  # of one prompt alone: prefill, compression, insert, draw
    step_s: float  # one token for every slot
    decode_tokens_per_s: float  # all slots together
    slot_bytes: int
    held_bytes: int  # all slots and the staging of prompts
    step_bytes: int  # that a step must at least read
    floor_s: float  # to read them at the bandwidth measured
    floor_share: float  # floor / step: 1 is as fast as the memory allows


@dataclass(frozen=True)
class Comparison:
    model: str
    slots: int
    prompt_tokens: int
    output_tokens: int
    rounds: int
    dtype: str
    device: str
    graphs: str
    threads: int
    torch: str
    bandwidth: float  # bytes a second: the best of several ways to read, over the whole run
    full: Measured
    compressed: Measured


def compare(configs: Pair, workload: Workload, tell: Progress = silent) -> Comparison:
    """Build both engines, then alternate between them and the bandwidth probe."""
    sides = [(config, build(config, tell)) for config in (configs.full, configs.compressed)]
    probe = Probe(torch.device(configs.full.device))
    for config, engine in sides:
        tell(0, 0, f"warming up: {config.kv.policy}")
        run_round(engine, min(workload.prompt_tokens, engine.limits.chunk + 1), WARM_UP)
    rounds: list[list[Round]] = [[] for _ in sides]
    for turn in range(workload.rounds):
        probe.run()
        for (config, engine), done in zip(sides, rounds, strict=True):
            tell(turn, workload.rounds, f"measuring: {config.kv.policy}")
            done.append(run_round(engine, workload.prompt_tokens, workload.output_tokens))
    full, compressed = (
        _measured(config, engine, done, workload, probe.best)
        for (config, engine), done in zip(sides, rounds, strict=True)
    )
    return _comparison(configs.full, workload, probe.best, full, compressed)


def _measured(
    config: EngineConfig, engine: LocalEngine, rounds: Sequence[Round], workload: Workload, bandwidth: float
) -> Measured:
    limits = engine.limits
    step = median(seconds for one in rounds for seconds in one.steps)
    shape = Shape.of(load_config(config.model_dir), config.model_dir.name)
    read = shape.active * item_bytes(config.dtype) + round(limits.slots * rounds[0].live * limits.entry_bytes)
    return Measured(
        cache=config.kv.policy,
        entries=limits.capacity,
        prefill_tokens_per_s=workload.prompt_tokens / median(one.prefill for one in rounds),
        first_token_s=median(one.first_token for one in rounds),
        step_s=step,
        decode_tokens_per_s=limits.slots / step,
        slot_bytes=limits.capacity * limits.entry_bytes,
        held_bytes=limits.held_bytes,
        step_bytes=read,
        floor_s=read / bandwidth,
        floor_share=read / bandwidth / step,
    )


def _comparison(
    config: EngineConfig, workload: Workload, bandwidth: float, full: Measured, compressed: Measured
) -> Comparison:
    return Comparison(
        model=config.model_dir.name,
        slots=config.slots,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        rounds=workload.rounds,
        dtype=config.dtype,
        device=config.device,
        graphs=config.graphs,
        threads=config.threads,
        torch=torch.__version__,
        bandwidth=bandwidth,
        full=full,
        compressed=compressed,
    )
