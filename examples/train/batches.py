"""batches: the batch of one step, a function of the seed, the stage and the step alone.

B rows, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.train.recall import IGNORED, Recall, Row
from examples.train.text import Text
from examples.train.vocabulary import END

TEXT_EVERY, TEXT_LENGTH = 8, 256  # one step in so many is text, in rows of this many tokens


@dataclass(frozen=True)
class Stage:
    """Batches of `tokens` tokens, in rows of these `lengths` by turns. A stage ends at this `recall` or after `steps`.

    values: distinct halves of numbers. Attention forms sooner if there are few. digits: of a number; three are one
    token. sentences: share of the questions that are sentences. has_text: whether some steps are text.
    """

    lengths: tuple[int, ...]
    steps: int
    values: int = 900
    tokens: int = 2048
    digits: int = 6
    sentences: float = 0.25
    recall: float = 0.95
    has_text: bool = True


STAGES = (
    Stage((36,), 2000, values=16, digits=3, sentences=0.0, has_text=False),
    Stage((36,), 1000, values=128, digits=3, sentences=0.0),
    Stage((64,), 1000, digits=3, sentences=0.0),
    Stage((128,), 1000, digits=3),
    Stage((48,), 1000, values=64, sentences=0.0, has_text=False),
    Stage((64,), 1000, sentences=0.0),
    Stage((128,), 1000),
    Stage((256,), 600),
    Stage((512,), 600, tokens=4096),
    Stage((512, 1024), 400, tokens=4096),
    Stage((1024, 2048, 2048), 300, tokens=4096, recall=2.0),  # all of its steps, while the learning rate falls
)


@dataclass(frozen=True)
class Batch:
    """tokens, targets: int64 [B, T]. answers: bool [B, T], positions that predict a number; text has none."""

    tokens: Tensor
    targets: Tensor
    answers: Tensor


class Batches:
    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer, self._seed = tokenizer, seed

    def __call__(self, stage: Stage, step: int) -> Batch:
        rng = Random(f"{self._seed}/{step}")
        if stage.has_text and step % TEXT_EVERY == TEXT_EVERY - 1:
            return _text(self._text.rows(rng, max(1, stage.tokens // TEXT_LENGTH), TEXT_LENGTH + 1))
        length = stage.lengths[step % len(stage.lengths)]
        recall = Recall(self._tokenizer, length, stage.values, stage.sentences, stage.digits)
        return _padded([recall.row(rng) for _ in range(max(1, stage.tokens // length))])

    @cached_property
    def _text(self) -> Text:
        return Text(self._tokenizer, self._tokenizer.token_to_id(END))


def _text(rows: Sequence[Sequence[int]]) -> Batch:
    both = torch.tensor(rows)
    return Batch(both[:, :-1], both[:, 1:], torch.zeros_like(both[:, 1:], dtype=torch.bool))


def _padded(rows: Sequence[Row]) -> Batch:
    longest = max(len(row.tokens) for row in rows)
    tokens, targets = torch.zeros(len(rows), longest, dtype=torch.long), torch.full((len(rows), longest), IGNORED)
    answers = torch.zeros_like(tokens, dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        targets[index, : len(row.targets)] = torch.tensor(row.targets)
        answers[index, row.answers] = True
    return Batch(tokens, targets, answers)
