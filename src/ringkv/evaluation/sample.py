"""Sample: one prompt with reference answers. Answer: the model's output.

A prompt is a context and a question about it. The question is part of the prompt, or comes after the prompt was
compressed, so that tokens are selected without it: fed token by token, or prefilled as a conversation's next turn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ringkv.base.errors import InvalidRequest

Item = TypeVar("Item")
Place = Literal["inside", "after", "next"]
"""Place of the question: inside the prompt, after its compression, or in the conversation's next turn."""


class CannotMake(InvalidRequest):
    """The samples of a task cannot be made: its data are missing, or the lengths are too short."""


class NoneOfKind(CannotMake):
    """A file of a user's has no samples of the task's kind. Another task has them all."""


@dataclass(frozen=True)
class Sample:
    """begin: the first words of the answer, given to the model.

    references: right answers; the score defines how several are combined. facts: keys that reports group by, such as a
    depth. name: unique in its task; "" in a draft. choices: all classes of a classification. answer_tokens: maximum
    length of the answer; 0 if the question itself is scored, token by token. is_chat: the prompt is wrapped in the
    model's chat template.
    """

    context: str
    question: str = ""
    begin: str = ""
    references: tuple[str, ...] = ()
    facts: Mapping[str, float | str] = field(default_factory=dict)
    name: str = ""
    choices: tuple[str, ...] = ()
    answer_tokens: int = 128
    is_chat: bool = True


@dataclass(frozen=True)
class Answer:
    """logprobs: natural log-probabilities, one per token of a question that is scored."""

    text: str
    logprobs: Sequence[float] = ()


def not_empty(items: Iterable[Item], otherwise: InvalidRequest) -> Iterator[Item]:
    """Yield the items. Raises the error if there are none."""
    is_empty = True
    for item in items:
        is_empty = False
        yield item
    if is_empty:
        raise otherwise


Score = Callable[[Answer, Sample], float]
"""From 0 (wrong) to 1 (right), or a mean log-probability if the question is scored."""


def of_text(score: Callable[[str, Sequence[str]], float]) -> Score:
    """Wrap a score that depends on the answer's text and the references only."""
    return lambda answer, sample: score(answer.text, sample.references)
