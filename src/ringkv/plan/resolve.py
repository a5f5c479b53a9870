"""resolve: completes users' options into an EngineConfig that fits in memory, or several that fit together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple, NoReturn

from ringkv.base.config import EngineConfig
from ringkv.base.errors import DoesNotFit
from ringkv.base.kv import KEEP_EVERY_TOKEN
from ringkv.models.config import ModelConfig
from ringkv.plan.auto_policy import settled
from ringkv.plan.complete import complete, default_threads
from ringkv.plan.engine_footprint import Place, needs, refuse_small_store
from ringkv.plan.footprint import Footprint
from ringkv.plan.options import AUTO, Options
from ringkv.plan.refusal import one_does_not_fit, several_do_not_fit, where

SMALLEST_PROMPT = 2048  # a default prompt limit is not lowered below this to make it fit
_NOTHING = Footprint(0, 0, 0, 0)


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

    The default prompt limit is the model's context, at most 32,768. If the engine does not fit, an "auto"
    prefix store is dropped first, then the staging for short prompts beside the longest, then the default prompt
    limit is halved until the engine fits.
    Raises `InvalidRequest` naming the option at fault, `BudgetTooSmall`, and `DoesNotFit` with the bytes needed, the
    bytes available and what would fit.
    """
    return resolve_all([Wanted(model_dir, config, options)], memory_bytes, device_bytes)[0]


def resolve_all(wanted: Sequence[Wanted], memory_bytes: int, device_bytes: int | None = None) -> list[EngineConfig]:
    """Complete the options for engines that share `memory_bytes` and one device, as `resolve` does for one.

    Engines whose threads are left open share the cores, and those with `kv_policy auto` the memory: each gets an equal
    part. If they do not fit together, "auto" prefix stores are dropped first, then engines with `kv_policy auto` evict,
    then less is staged; of several engines the one that needs most is the first.
    """
    available: dict[Place, int] = {"host": memory_bytes}
    if device_bytes is not None:
        available["device"] = device_bytes
    parts = {place: size // len(wanted) for place, size in available.items()}
    plans = [_Plan.of(request, parts) for request in _with_threads(wanted)]
    while place := _short(plans, available):
        plans = _changed(plans, place) or _refuse(plans, place, available[place])
    return [replace(plan.engine, kv_why=plan.why) for plan in plans]


def _short(plans: Sequence["_Plan"], available: Mapping[Place, int]) -> Place | None:
    """Return a place where the plans do not fit together; None if they fit everywhere."""
    return next((place for place in available if sum(plan.bytes(place) for plan in plans) > available[place]), None)


@dataclass(frozen=True)
class _Plan:
    """An engine's configuration, and what it was made of. asked: by the user. wanted: with a policy instead of auto.

    why: what auto has decided, and why.
    """

    asked: Wanted
    wanted: Wanted
    engine: EngineConfig
    why: str

    @classmethod
    def of(cls, asked: Wanted, available: Mapping[Place, int], is_crowded: bool = False) -> "_Plan":
        options, why = settled(*asked, available, is_crowded)
        wanted = asked._replace(options=options)
        engine = complete(*wanted)
        refuse_small_store(wanted.config, engine)
        return cls(asked, wanted, engine, why)

    @cached_property
    def needs(self) -> Mapping[Place, Footprint]:
        return needs(self.wanted.config, self.engine)

    def bytes(self, place: Place) -> int:
        return self.needs[place].total(self.engine.slots) if place in self.needs else 0

    def without_store(self, place: Place) -> "_Plan | None":
        """Return a plan without the prefix store; None if that is not "auto", or lies elsewhere."""
        options = self.wanted.options
        store = self.needs.get(place, _NOTHING).store
        if not store or options.prefix_store != AUTO or self.engine.kv.turns != "reread":
            return None
        wanted = self.wanted._replace(options=replace(options, prefix_store=0))
        return replace(self, wanted=wanted, engine=complete(*wanted))

    def evicting(self, _: Place) -> "_Plan | None":
        """Return a plan that evicts, if auto has chosen one that does not; None if it is not free to."""
        if self.asked.options.kv_policy != AUTO or self.engine.kv.policy not in KEEP_EVERY_TOKEN:
            return None
        other = _Plan.of(self.asked, {}, is_crowded=True)
        return None if other.engine.kv.policy in KEEP_EVERY_TOKEN else other

    def with_less_staging(self, place: Place) -> "_Plan | None":
        """Return a plan that stages the longest prompts alone; if it does, one for half the prompt limit.

        None if staging lies elsewhere, the user set the limit, it is at its lowest, or a workspace bounds the staging
        instead.
        """
        (_, config, options), engine, need = self.wanted, self.engine, self.needs.get(place, _NOTHING)
        if not need.staging and not need.slot:
            return None
        lanes = options.lanes or 1
        if (entries := lanes * engine.workspace.size) < engine.staged_entries:
            return replace(self, engine=replace(engine, lanes=lanes, staged_tokens=entries))
        if options.prompt_tokens is not None or engine.prefill_workspace or engine.prompt_tokens <= SMALLEST_PROMPT:
            return None
        half = max(SMALLEST_PROMPT, engine.prompt_tokens // 2)
        half = max(half - half % engine.chunk, engine.chunk)  # rounded down to whole chunks
        halved = complete(engine.model_dir, config, replace(options, prompt_tokens=half))
        return replace(self, engine=halved) if halved.prompt_tokens < engine.prompt_tokens else None


def _with_threads(wanted: Sequence[Wanted]) -> Sequence[Wanted]:
    if len(wanted) == 1:
        return wanted
    share = max(1, default_threads() // len(wanted))
    return [request._replace(options=request.options.filled(threads=share)) for request in wanted]


_CHANGES = (_Plan.without_store, _Plan.evicting, _Plan.with_less_staging)
"""What makes a plan need less, what users miss least first."""


def _changed(plans: Sequence[_Plan], place: Place) -> list[_Plan] | None:
    """Return the plans with one that needs less there: the largest that can be; None if none can be."""
    largest_first = sorted(plans, key=lambda plan: plan.bytes(place), reverse=True)
    for change, plan in product(_CHANGES, largest_first):
        if changed := change(plan, place):
            return [changed if other is plan else other for other in plans]
    return None


def _refuse(plans: Sequence[_Plan], place: Place, memory: int) -> NoReturn:
    there = where(place, plans[0].engine.device)
    if len(plans) > 1:
        parts = [(plan.engine.model_dir.name, plan.bytes(place)) for plan in plans]
        raise DoesNotFit(several_do_not_fit(parts, there, memory))
    (plan,) = plans
    raise DoesNotFit(one_does_not_fit(plan.wanted.config, plan.engine, plan.needs[place], there, memory))
