"""recall: rows of ringkv's task `recall` with many questions each, so that each row has many targets.

    Numbers by name:

    ox: 512734
    ant: 407158 ...

    Which number does ant have in the list above?
    ant: 407158
    ox: 512734 ...

A prompt of `ringkv eval` is a row up to its first answer. Most later questions have no sentence.
"""

from dataclasses import dataclass
from itertools import cycle
from random import Random

from tokenizers import Tokenizer

from ringkv.evaluation.tasks.recall import listed, numbers, question

IGNORED = -100
LINE = 5  # tokens: end of line, name, colon, two halves of a number


@dataclass(frozen=True)
class Row:
    """targets: what each token predicts, or IGNORED. answers: positions that predict a half of a number."""

    tokens: list[int]
    targets: list[int]
    answers: list[int]


@dataclass(frozen=True)
class Recall:
    """Makes rows of about `length` tokens, of which a list takes a share between `least` and `most`.

    values: distinct halves of numbers. sentences: share of the questions that are sentences.
    """

    tokenizer: Tokenizer
    length: int
    values: int
    sentences: float
    digits: int = 6
    least: float = 0.35
    most: float = 0.97

    def row(self, rng: Random) -> Row:
        names = max(2, int(rng.uniform(self.least, self.most) * self.length / LINE))
        pairs = {name: number[: self.digits] for name, number in numbers(rng, names, self.values).items()}
        tokens = self._encode(listed(pairs))
        row = Row(tokens, [IGNORED] * len(tokens), [])
        for name in cycle(rng.sample(list(pairs), len(pairs))):
            if row.answers and len(tokens) + LINE > self.length:
                return row
            sentence = question(name) if rng.random() < self.sentences else ""
            self._ask(row, f"{sentence}\n{name}:", pairs[name])
        raise AssertionError("a list has names")

    def _ask(self, row: Row, asked: str, number: str) -> None:
        """Append a question and its answer to the row."""
        tokens, answer = self._encode(asked), self._encode(f" {number}")
        first = len(row.tokens) + len(tokens) - 1
        row.answers.extend(range(first, first + len(answer)))
        row.targets.extend([IGNORED] * (len(tokens) - 1) + answer + [IGNORED])
        row.tokens.extend(tokens + answer)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids
