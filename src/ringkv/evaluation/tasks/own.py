"""Own: a user's prompts, from a file with a JSON object on each line.

    {"prompt": "a long text", "question": "what is asked about it", "answers": ["right", "right too"], "max_tokens": 64}

Only the prompt is required. An empty line comes between it and the question. An answer is right if one of `answers` is
in it. Without any, its score is how far it agrees with the full cache's answer. A prompt without a question is the same
wherever the question is placed.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import NoneOfKind, Sample
from ringkv.evaluation.tasks.source import Source

ANSWER_TOKENS = 128
BETWEEN = "\n\n"  # a prompt and its question
KINDS = {"prompt": str, "question": str, "answers": list, "max_tokens": int}


def with_answers(source: Source) -> Iterator[Sample]:
    """Yield those of the first `source.count` prompts that have right answers. Raises NoneOfKind if none has."""
    return _some((one for one in _samples(source) if one.references), "no prompt has answers")


def without_answers(source: Source) -> Iterator[Sample]:
    """Yield those of the first `source.count` prompts that have none. Raises NoneOfKind if all have some."""
    return _some((one for one in _samples(source) if not one.references), "every prompt has answers")


def _some(samples: Iterator[Sample], otherwise: str) -> Iterator[Sample]:
    first = next(samples, None)
    if first is None:
        raise NoneOfKind(otherwise, "prompts")
    yield first
    yield from samples


def _samples(source: Source) -> Iterator[Sample]:
    for number, line in enumerate(islice(source.prompt_lines(), source.count), 1):
        yield _sample(number, line)


def _sample(number: int, text: str) -> Sample:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(
            f'prompt {number} is not JSON ({error}); write {{"prompt": "..."}} on each line', "prompts"
        ) from error
    _check(number, found)
    question = found.get("question", "")
    return Sample(
        name=str(number),
        context=found["prompt"],
        question=f"{BETWEEN}{question}" if question else "",
        references=tuple(map(str, found.get("answers", ()))),
        answer_tokens=found.get("max_tokens", ANSWER_TOKENS),
    )


def _check(number: int, found: Any) -> None:
    """Raise InvalidRequest unless a prompt has the fields of the module's docstring."""
    if not isinstance(found, dict) or "prompt" not in found:
        raise InvalidRequest(f'prompt {number} has no "prompt"; write {{"prompt": "..."}} on each line', "prompts")
    for name, value in found.items():
        if name not in KINDS or not isinstance(value, KINDS[name]):
            raise InvalidRequest(
                f'prompt {number} has an invalid "{name}"; the fields are '
                + ", ".join(f'"{one}" ({kind.__name__})' for one, kind in KINDS.items()),
                "prompts",
            )
    if found.get("max_tokens", 1) < 1:
        raise InvalidRequest(
            f'prompt {number} has "max_tokens" {found["max_tokens"]}; it must be at least 1', "prompts"
        )
