"""batches: what one step learns from, a function of the seed, the stage and the step alone.

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

TOKENS = 4096  # of a batch
TEXT_EVERY, TEXT_LENGTH = 8, 256  # one step in so many is text, in rows of this many tokens


@dataclass(frozen=True)
class Stage:
    """Rows of these `lengths` by turns, until recall is `recall` or `steps` steps are done."""

    lengths: tuple[int, ...]
    steps: int
    recall: float = 0.95


STAGES = (
    Stage((128,), 3000),
    Stage((256,), 1000),
    Stage((512,), 600),
    Stage((512, 1024), 500),
    Stage((512, 1024, 2048), 400, recall=2.0),  # all of its steps, while the learning rate falls
)


@dataclass(frozen=True)
class Batch:
    """tokens, targets: int64 [B, T]. answers: (row, first, last) positions of each answer's predictions; text has none."""

    tokens: Tensor
    targets: Tensor
    answers: tuple[tuple[int, int, int], ...]


class Batches:
    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer, self._seed = tokenizer, seed
        self._end = tokenizer.token_to_id(END)

    def __call__(self, stage: Stage, step: int) -> Batch:
        rng = Random(f"{self._seed}/{step}")
        if step % TEXT_EVERY == TEXT_EVERY - 1:
            return _text(self._text.rows(rng, TOKENS // TEXT_LENGTH, TEXT_LENGTH + 1))
        length = stage.lengths[step % len(stage.lengths)]
        recall = Recall(self._tokenizer, self._end, length)
        return _padded([recall.row(rng) for _ in range(max(1, TOKENS // length))])

    @cached_property
    def _text(self) -> Text:
        return Text(self._tokenizer, self._end)


def _text(rows: Sequence[Sequence[int]]) -> Batch:
    both = torch.tensor(rows)
    return Batch(both[:, :-1], both[:, 1:], ())


def _padded(rows: Sequence[Row]) -> Batch:
    longest = max(len(row.tokens) for row in rows)
    tokens, targets = torch.zeros(len(rows), longest, dtype=torch.long), torch.full((len(rows), longest), IGNORED)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        targets[index, : len(row.targets)] = torch.tensor(row.targets)
    return Batch(tokens, targets, tuple((index, *one) for index, row in enumerate(rows) for one in row.answers))
