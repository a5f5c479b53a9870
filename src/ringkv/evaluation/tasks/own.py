"""Own: a user's prompts, from a file with a JSON object on each line.

    {"prompt": "a long text", "question": "what is asked about it", "answers": ["right", "right too"], "max_tokens": 64}

Only the prompt is required. An empty line comes between it and the question. An answer is right if one of `answers` is
in it. Without any, its score is how far it agrees with the full cache's answer. A prompt without a question is the same
wherever the question is placed.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import NoneOfKind, Sample, not_empty
from ringkv.evaluation.tasks.source import Source

BETWEEN = "\n\n"  # a prompt and its question


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: str
    question: str = ""
    answers: tuple[str | int | float, ...] = ()
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 128


def with_answers(source: Source) -> Iterator[Sample]:
    """Yield those of the first `source.count` prompts that have right answers. Raises NoneOfKind if none has."""
    samples = (sample for sample in _samples(source) if sample.references)
    return not_empty(samples, NoneOfKind("no prompt has answers", "prompts"))


def without_answers(source: Source) -> Iterator[Sample]:
    """Yield those of the first `source.count` prompts that have none. Raises NoneOfKind if all have some."""
    samples = (sample for sample in _samples(source) if not sample.references)
    return not_empty(samples, NoneOfKind("every prompt has answers", "prompts"))


def check(file: Path, count: int) -> None:
    """Raise InvalidRequest, with its number, for the first of so many prompts that is invalid."""
    for _ in _samples(Source((), count, 0, None, lambda _: 0, file)):
        pass


def _samples(source: Source) -> Iterator[Sample]:
    return (_sample(number, line) for number, line in enumerate(islice(source.prompt_lines(), source.count), 1))


def _sample(number: int, text: str) -> Sample:
    try:
        own = msgspec.json.decode(text, type=Prompt)
    except msgspec.MsgspecError as error:
        fields = ", ".join(f'"{name}"' for name in Prompt.__struct_fields__)
        raise InvalidRequest(
            f'prompt {number} is invalid ({error}); write {{"prompt": "..."}} on each line, with the fields {fields}',
            "prompts",
        ) from error
    return Sample(
        name=str(number),
        context=own.prompt,
        question=f"{BETWEEN}{own.question}" if own.question else "",
        references=tuple(map(str, own.answers)),
        answer_tokens=own.max_tokens,
    )
