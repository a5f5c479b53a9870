"""Sample: one prompt, and what its answer should say. Answer: what the model said.

A prompt is a context and a question about it. The question is part of the prompt, or it is fed after the prompt was
compressed: then what is kept was chosen without knowing it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ringkv.base.errors import InvalidRequest

Place = Literal["inside", "after"]
"""Where the question stands: inside the prompt, or after its compression."""


class CannotMake(InvalidRequest):
    """A task's samples cannot be made: its data are not there, or prompts are too short for it."""


@dataclass(frozen=True)
class Sample:
    """`name` is unique in its task. `begin`: the first words of the answer, given to the model.

    references: right answers; what several mean is the score's business. choices: all classes, where there are some.
    answer_tokens: the longest answer; 0 where the question itself is scored, token by token.
    is_chat: whether the model's chat template goes round the prompt. facts: what reports group by, such as a depth.
    """

    name: str
    context: str
    question: str = ""
    begin: str = ""
    references: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    answer_tokens: int = 128
    is_chat: bool = True
    facts: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """`logprobs`: natural logarithms, one for each token of a question that is scored."""

    text: str
    logprobs: Sequence[float] = ()


Score = Callable[[Answer, Sample], float]
"""From 0, wrong, to 1; or a mean log-probability, where the question is scored."""


def of_text(score: Callable[[str, Sequence[str]], float]) -> Score:
    """A score that looks at the answer's words and the references only."""
    return lambda answer, sample: score(answer.text, sample.references)
