"""recall: sequences of RULER's task niah_multikey_2 with many questions each, so that each sequence teaches much.

    context: "Some magic numbers ...\n\nOne magic number of odd-ox is 1234567.\nOne magic number of ..."
    then, for each question: "\n\nWhat is the magic number of odd-ox in the text above? The magic number of odd-ox in
    the text is" " 1234567." <end>

What `ringkv eval` asks is a sequence's beginning up to its first answer.
"""

import re
from dataclasses import dataclass
from itertools import cycle
from random import Random

from tokenizers import Tokenizer

from ringkv.evaluation.tasks.ruler.needles import RETRIEVAL

TASK = RETRIEVAL["niah_multikey_2"]
NEEDLE = re.compile(r"One magic number of (\S+(?: \S+)*) is (\d+)\.")
IGNORED = -100


@dataclass(frozen=True)
class Row:
    """tokens and targets: what is predicted at each token, IGNORED if nothing. first: positions of the answers' first
    predictions, and of the last ones.
    """

    tokens: list[int]
    targets: list[int]
    answers: list[tuple[int, int]]


@dataclass(frozen=True)
class Recall:
    """Makes rows of at most `length` tokens, of which needles fill up to `share`."""

    tokenizer: Tokenizer
    end: int
    length: int
    share: float = 0.85

    def row(self, rng: Random) -> Row:
        room = rng.uniform(0.25, self.share) * self.length
        hay = max(1, int((room - 40) / 14))
        draft = TASK.draft(str(rng.random()), hay, 0.5, None)
        pairs = NEEDLE.findall(draft.context)
        key, _ = next(pair for pair in pairs if pair[1] == draft.references[0])
        rng.shuffle(pairs)
        tokens = self._encode(draft.context)
        targets, answers = [IGNORED] * len(tokens), []
        for other, value in cycle(pairs):
            asked = self._encode((draft.question + draft.begin).replace(key, other))
            answer = [*self._encode(f" {value}."), self.end]
            if answers and len(tokens) + len(asked) + len(answer) > self.length:
                break
            targets += [IGNORED] * (len(asked) - 1) + answer + [IGNORED]
            tokens += asked + answer
            answers.append((len(tokens) - len(answer) - 1, len(tokens) - 2))
        return Row(tokens[: self.length], targets[: self.length], [a for a in answers if a[1] < self.length])

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids
