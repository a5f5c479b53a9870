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
BALANCE = 0.01  # weight of the loss of uneven experts
SMOOTH = 0.9  # of the moving average of recall
SAVE_EVERY, LOG_EVERY = 60.0, 10  # seconds, steps


@dataclass
class Place:
    """How far training is: the step, the stage and its first step, the moving average of recall."""

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
        self.optimizer, self.place = _optimizer(decoder), Place()

    def run(self, log: Callable[[str], None], until: int | None = None) -> bool:
        """Train from the checkpoint, if there is one, to the end or step `until`. Returns whether that is the end.

        Ctrl-C saves and returns.
        """
        self._load()
        saved = time.monotonic()
        with interrupted() as is_interrupted:
            while self.place.stage < len(self.stages) and self.place.step != until and not is_interrupted():
                self._step(log)
                if time.monotonic() - saved > SAVE_EVERY:
                    self._save()
                    saved = time.monotonic()
        self._save()
        return self.place.stage == len(self.stages)

    def _step(self, log: Callable[[str], None]) -> None:
        started, place = time.monotonic(), self.place
        stage = self.stages[place.stage]
        batch = self.batches(stage, place.step)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * self._rate()
        result = predict(self.decoder, batch, f"{self.seed}/{place.step}")
        self.optimizer.zero_grad()
        (result.loss + BALANCE * self.decoder.balance).backward()
        nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        self.optimizer.step()
        if batch.answers.any():
            place.recall = SMOOTH * place.recall + (1 - SMOOTH) * recalled(batch, result.correct)
        else:
            place.text_loss = result.loss.item()
        place.step += 1
        place.tokens += batch.tokens.numel()
        place.seconds += time.monotonic() - started
        if place.step % LOG_EVERY == 0:
            log(self._line(result.loss.item()))
        self._advance(stage)

    def _rate(self) -> float:
        """The learning rate as a share of the highest: it rises at first, and falls to 0 in the last stage."""
        place, left = self.place, 1.0
        if place.stage == len(self.stages) - 1:
            left = 1 - (place.step - place.began) / self.stages[-1].steps
        return min(1.0, (place.step + 1) / WARMUP) * left

    def _advance(self, stage: Stage) -> None:
        place = self.place
        if place.recall > stage.recall or place.step - place.began >= stage.steps:
            place.stage, place.began, place.recall = place.stage + 1, place.step, 0.0

    def _line(self, loss: float) -> str:
        place = self.place
        left = sum(stage.steps for stage in self.stages[place.stage :]) - (place.step - place.began)
        minutes = left * place.seconds / place.step / 60
        return (
            f"step {place.step} stage {place.stage + 1}/{len(self.stages)} loss {loss:.3f} recall {place.recall:.1%} "
            f"text {place.text_loss:.2f} {place.tokens / place.seconds:,.0f} tokens/s at most {minutes:.0f} min left"
        )

    def _save(self) -> None:
        """Write the checkpoint; a crash meanwhile leaves the last one."""
        state = {
            "decoder": self.decoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "place": asdict(self.place),
        }
        temporary = self.path.with_suffix(".new")
        torch.save(state, temporary)
        os.replace(temporary, self.path)

    def _load(self) -> None:
        if self.path.exists():
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
            self.decoder.load_state_dict(state["decoder"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.place = Place(**state["place"])


def _optimizer(decoder: Decoder) -> torch.optim.Optimizer:
    """Embedding and norms do not decay."""
    matrices = [one for name, one in decoder.named_parameters() if one.ndim == 2 and "embed" not in name]
    others = [one for name, one in decoder.named_parameters() if one.ndim != 2 or "embed" in name]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), fused=True)
