"""estimate: the time that a study takes, from one prompt and a few steps that are timed first."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ringkv.base.engine import Engine
from ringkv.base.kv import BLOCK
from ringkv.bench.round import run_round
from ringkv.evaluation.pending import UnansweredPrompt
from ringkv.models.config import ModelConfig
from ringkv.plan.floor import prefill

PROBE, STEPS = 1024, 6  # tokens of the prompt, and decode steps


@dataclass(frozen=True)
class Pace:
    """operation: seconds of prefill per operation. step: seconds of a decode step with all slots in use."""

    operation: float
    step: float
    slots: int
    config: ModelConfig

    @classmethod
    def measured(cls, engine: Engine, config: ModelConfig) -> "Pace":
        tokens = min(PROBE, engine.limits.prompt_tokens)
        run_round(engine, min(BLOCK - 1, tokens), 2)  # warm-up; too short for the prefix store
        timed = run_round(engine, tokens, 1 + STEPS)
        operations = prefill(config, tokens, engine.limits.entry_bytes).operations
        return cls(timed.prefill / operations, median(timed.steps), engine.limits.slots, config)

    def seconds(self, item: UnansweredPrompt) -> float:
        """Seconds for a prompt and all its answers, at their maximum length and with all slots in use."""
        prefilled = self._prefill(len(item.prompt.tokens)) - self._prefill(item.shared)
        return prefilled + self.step * item.output * len(item.cells) / self.slots

    def _prefill(self, tokens: int) -> float:
        return self.operation * prefill(self.config, tokens, 0).operations

    def total(self, pending: Sequence[UnansweredPrompt]) -> float:
        return sum(map(self.seconds, pending))


def show_duration(seconds: float) -> str:
    """Format as "40 s", "12 min" or "3.5 h", in steps of at least 10 seconds."""
    if seconds < 95:
        return f"{10 * max(1, round(seconds / 10))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
