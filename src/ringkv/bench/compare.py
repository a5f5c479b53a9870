"""compare: measures a full and a compressed cache in turn in one run, and compares the medians with the floor."""

from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from ringkv.base.config import EngineConfig
from ringkv.base.progress import Progress, silent
from ringkv.bench.pair import EnginePair, Workload
from ringkv.bench.probe import Ceiling, Machine
from ringkv.bench.round import Round, run_round
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan import floor
from ringkv.text.repeat_words import repeat_words

WARM_UP = 3  # output tokens of the first round, which is not counted


@dataclass(frozen=True)
class Floors:
    """The floor in seconds, and the floor over the measured time: a share of 1 is the limit."""

    prefill_s: float
    prefill_share: float
    first_token_share: float  # the floor of prefill; compression and sampling are not counted
    step_s: float
    step_share: float


@dataclass(frozen=True)
class Measured:
    """Medians over the rounds."""

    cache: str  # the policy
    entries: int  # per slot
    prefill_tokens_per_s: float  # one prompt alone
    first_token_s: float  # one prompt alone: prefill, compression, insertion, sampling
    step_s: float  # one token for every slot
    decode_tokens_per_s: float  # all slots together
    slot_bytes: int
    held_bytes: int  # all slots and staging
    step_bytes: int  # least bytes that a decode step reads
    floors: Floors | None  # None if the machine was not probed


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
    ceiling: Ceiling | None
    full: Measured
    compressed: Measured


@dataclass(frozen=True)
class _Side:
    config: EngineConfig
    engine: LocalEngine
    rounds: list[Round]


def compare(configs: EnginePair, workload: Workload, progress: Progress = silent, limit: bool = False) -> Comparison:
    """Build both engines, then alternate between them. With `limit`, also alternate with probes of the machine."""
    sides = [
        _Side(config, build(config, progress, partial(repeat_words, config.model_dir)), [])
        for config in (configs.full, configs.compressed)
    ]
    machine = Machine(torch.device(configs.full.device)) if limit else None
    for side in sides:
        progress(0, 0, f"warming up: {side.config.kv.policy}")
        run_round(side.engine, min(workload.prompt_tokens, side.engine.limits.chunk + 1), WARM_UP)
    for turn in range(workload.rounds):
        if machine:
            progress(turn, workload.rounds, "probing memory and matrix products")
            machine.run()
        for side in sides:
            progress(turn, workload.rounds, f"measuring: {side.config.kv.policy}")
            side.rounds.append(run_round(side.engine, workload.prompt_tokens, workload.output_tokens))
    ceiling = machine.ceiling if machine else None
    full, compressed = (_measured(side, workload, ceiling) for side in sides)
    config = configs.full
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
        ceiling=ceiling,
        full=full,
        compressed=compressed,
    )


def _measured(side: _Side, workload: Workload, ceiling: Ceiling | None) -> Measured:
    config, limits, rounds = side.config, side.engine.limits, side.rounds
    model = load_config(config.model_dir)
    prefill, first = (median(getattr(timed, name) for timed in rounds) for name in ("prefill", "first_token"))
    step = median(seconds for timed in rounds for seconds in timed.steps)
    prompt = floor.prefill(model, workload.prompt_tokens, limits.entry_bytes, config.dtype)
    read = floor.step(model, limits.slots, rounds[0].live, limits.entry_bytes, config.dtype)
    floors = None
    if ceiling:
        least, least_step = (cost.seconds(ceiling.rates(cost.bytes)) for cost in (prompt, read))
        floors = Floors(least, least / prefill, least / first, least_step, least_step / step)
    return Measured(
        cache=config.kv.policy,
        entries=limits.capacity,
        prefill_tokens_per_s=workload.prompt_tokens / prefill,
        first_token_s=first,
        step_s=step,
        decode_tokens_per_s=limits.slots / step,
        slot_bytes=limits.capacity * limits.entry_bytes,
        held_bytes=limits.held_bytes,
        step_bytes=round(read.bytes),
        floors=floors,
    )
