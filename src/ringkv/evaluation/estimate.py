"""Estimate: how long work takes, from one prompt and a few steps that are timed before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ringkv.base.engine import Engine
from ringkv.base.kv import BLOCK
from ringkv.evaluation.work import Work
from ringkv.models.config import ModelConfig
from ringkv.plan.floor import prefill
from ringkv.scheduler.round import run_round

PROBE, STEPS = 1024, 6  # tokens of the prompt, and decode steps


@dataclass(frozen=True)
class Pace:
    """`operation`: seconds of prefill for each operation; `step`: seconds of a decode step with all slots in use."""

    operation: float
    step: float
    slots: int
    config: ModelConfig

    @classmethod
    def measured(cls, engine: Engine, config: ModelConfig) -> "Pace":
        tokens = min(PROBE, engine.limits.prompt_tokens)
        run_round(engine, min(BLOCK - 1, tokens), 2)  # pays for what all others find ready; no store remembers it
        timed = run_round(engine, tokens, 1 + STEPS)
        operations = prefill(config, tokens, engine.limits.entry_bytes).operations
        return cls(timed.prefill / operations, median(timed.steps), engine.limits.slots, config)

    def seconds(self, work: Work) -> float:
        """Of a prompt and all its answers, each as long as it may be, beside others that fill the slots."""
        read = self._read(len(work.prompt.tokens)) - self._read(work.begun)
        return read + self.step * work.output * len(work.cells) / self.slots

    def _read(self, tokens: int) -> float:
        return self.operation * prefill(self.config, tokens, 0).operations

    def total(self, works: Sequence[Work]) -> float:
        return sum(map(self.seconds, works))


def spoken(seconds: float) -> str:
    """For people: "40 s", "12 min", "3.5 h"; never finer than tens of seconds."""
    if seconds < 95:
        return f"{10 * max(1, round(seconds / 10))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
