"""EnginePair: the configurations of the two engines of a comparison, which fit in memory together."""

from dataclasses import dataclass, replace
from pathlib import Path

from ringkv.base.config import EngineConfig
from ringkv.base.errors import DoesNotFit, InvalidRequest
from ringkv.bench.probe import PROBE_BYTES
from ringkv.models.config import ModelConfig
from ringkv.plan.checks import at_least
from ringkv.plan.engine_footprint import Place, needs
from ringkv.plan.options import AUTO, Options
from ringkv.plan.resolve import resolve
from ringkv.plan.units import show_bytes


@dataclass(frozen=True)
class Workload:
    """prompt_tokens, output_tokens: of each request. rounds: measurements of each engine.

    Raises InvalidRequest for a number that is too small.
    """

    prompt_tokens: int = 4096
    output_tokens: int = 64
    rounds: int = 3

    def __post_init__(self) -> None:
        at_least(1, "--prompt-tokens", self.prompt_tokens, 1)
        at_least(2, "--output-tokens", self.output_tokens, 2)
        at_least(1, "--rounds", self.rounds, 1)


@dataclass(frozen=True)
class EnginePair:
    full: EngineConfig
    compressed: EngineConfig


def plan_pair(
    folder: Path, model: ModelConfig, options: Options, workload: Workload, memory: int, device: int | None = None
) -> EnginePair:
    """Return both configurations, which differ in the cache only. device: free bytes of the GPU they run on.

    Raises InvalidRequest for an invalid workload, DoesNotFit if one engine or both together do not fit.
    """
    refuse_baseline(options)
    if workload.prompt_tokens + workload.output_tokens > model.context:
        raise InvalidRequest(
            f"{workload.prompt_tokens:,} prompt and {workload.output_tokens:,} output tokens are over the model's "
            f"context of {model.context:,}; lower them"
        )
    options = replace(options, prompt_tokens=options.prompt_tokens or workload.prompt_tokens)
    if workload.prompt_tokens > (options.prompt_tokens or 0):
        raise InvalidRequest(
            f"--prompt-tokens {workload.prompt_tokens:,} is over --max-prompt {options.prompt_tokens:,}; "
            "lower the first, or leave out the second"
        )
    full = replace(options, kv_policy="full", kv_budget=None, kv_compression=None, output_tokens=workload.output_tokens)
    made = EnginePair(*(resolve(folder, model, chosen, memory, device) for chosen in (full, options)))
    place: Place = "host" if device is None else "device"  # where steps run
    available = memory if device is None else device
    both = [needs(model, config)[place].total(config.slots) for config in (made.full, made.compressed)]
    if sum(both) + PROBE_BYTES > available:
        raise DoesNotFit(
            f"the full engine ({show_bytes(both[0])}) and the compressed one ({show_bytes(both[1])}) are measured in "
            f"turn and do not fit together in the {show_bytes(available)} available; use fewer --slots or a shorter "
            "--prompt-tokens"
        )
    return made


def refuse_baseline(options: Options) -> None:
    """Raise InvalidRequest for a policy that is, or may be, the full cache that it is compared with."""
    if options.kv_policy == "full":
        raise InvalidRequest("--kv-policy full is the baseline of the comparison; choose another", "kv_policy")
    if options.kv_policy == AUTO:
        raise InvalidRequest("--kv-policy auto may be full, the baseline of the comparison; name one", "kv_policy")
