"""loop: trains one decoder; stops and resumes at any step, and gives the same weights as if it had never stopped."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.train.batches import Batch, Stage
from examples.train.interrupt import interrupted
from examples.train.model import Decoder
from examples.train.predict import predict, recalled

RATE, WARMUP, DECAY = 1e-3, 50, 0.1  # learning rate, its first steps, weight decay of matrices
BALANCE = 0.01  # weight of the load-balancing loss
SMOOTH = 0.9  # of the moving average of recall
SAVE_EVERY, LOG_EVERY = 60.0, 10  # seconds, steps


@dataclass
class Progress:
    """Progress of training. began: the first step of the stage. recall: a moving average."""

    step: int = 0
    stage: int = 0
    began: int = 0
    recall: float = 0.0
    text_loss: float = 0.0
    tokens: int = 0
    seconds: float = 0.0


class Trainer:
    """Updates `decoder` in place. batches: the batch of a stage and step."""

    def __init__(
        self, decoder: Decoder, batches: Callable[[Stage, int], Batch], stages: Sequence[Stage], seed: int, path: Path
    ) -> None:
        self.decoder, self.batches, self.stages, self.seed, self.path = decoder, batches, stages, seed, path
        self.optimizer, self.progress = _optimizer(decoder), Progress()

    def run(self, log: Callable[[str], None], until: int | None = None) -> bool:
        """Train from the checkpoint, if there is one, to the end or step `until`. Returns whether that is the end.

        Ctrl-C saves and returns.
        """
        self._load()
        saved = time.monotonic()
        with interrupted() as is_interrupted:
            while self.progress.stage < len(self.stages) and self.progress.step != until and not is_interrupted():
                self._step(log)
                if time.monotonic() - saved > SAVE_EVERY:
                    self._save()
                    saved = time.monotonic()
        self._save()
        return self.progress.stage == len(self.stages)

    def _step(self, log: Callable[[str], None]) -> None:
        started, progress = time.monotonic(), self.progress
        stage = self.stages[progress.stage]
        batch = self.batches(stage, progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * self._rate()
        result = predict(self.decoder, batch, f"{self.seed}/{progress.step}")
        self.optimizer.zero_grad()
        (result.loss + BALANCE * self.decoder.balance).backward()
        nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        self.optimizer.step()
        if batch.answers.any():
            progress.recall = SMOOTH * progress.recall + (1 - SMOOTH) * recalled(batch, result.correct)
        else:
            progress.text_loss = result.loss.item()
        progress.step += 1
        progress.tokens += batch.tokens.numel()
        progress.seconds += time.monotonic() - started
        if progress.step % LOG_EVERY == 0:
            log(self._line(result.loss.item()))
        self._advance(stage)

    def _rate(self) -> float:
        """The learning rate as a share of RATE: it warms up, and falls to 0 in the last stage."""
        progress, left = self.progress, 1.0
        if progress.stage == len(self.stages) - 1:
            left = 1 - (progress.step - progress.began) / self.stages[-1].steps
        return min(1.0, (progress.step + 1) / WARMUP) * left

    def _advance(self, stage: Stage) -> None:
        progress = self.progress
        if progress.recall > stage.recall or progress.step - progress.began >= stage.steps:
            progress.stage, progress.began, progress.recall = progress.stage + 1, progress.step, 0.0

    def _line(self, loss: float) -> str:
        done = self.progress
        left = sum(stage.steps for stage in self.stages[done.stage :]) - (done.step - done.began)
        minutes = left * done.seconds / done.step / 60
        return (
            f"step {done.step} stage {done.stage + 1}/{len(self.stages)} loss {loss:.3f} recall {done.recall:.1%} "
            f"text {done.text_loss:.2f} {done.tokens / done.seconds:,.0f} tokens/s at most {minutes:.0f} min left"
        )

    def _save(self) -> None:
        """Write the checkpoint. A crash meanwhile leaves the previous one."""
        state = {
            "decoder": self.decoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        temporary = self.path.with_suffix(".new")
        torch.save(state, temporary)
        os.replace(temporary, self.path)

    def _load(self) -> None:
        if self.path.exists():
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
            self.decoder.load_state_dict(state["decoder"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(**state["progress"])


def _optimizer(decoder: Decoder) -> torch.optim.Optimizer:
    """Embedding and norms do not decay."""
    matrices = [one for name, one in decoder.named_parameters() if one.ndim == 2 and "embed" not in name]
    others = [one for name, one in decoder.named_parameters() if one.ndim != 2 or "embed" in name]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), fused=True)
