"""Own: a user's prompts, from a file with a JSON object on each line.

    {"prompt": "a long text", "question": "what is asked about it", "answers": ["right", "right too"], "max_tokens": 64}

Only the prompt is required. An empty line comes between it and the question. An answer is right if one of `answers` is
in it. Without any, its score is how far it agrees with the full cache's answer. A prompt without a question is the same
wherever the question is placed.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import NoneOfKind, Sample, not_empty
from ringkv.evaluation.tasks.source import Source

ANSWER_TOKENS = 128
BETWEEN = "\n\n"  # a prompt and its question
KINDS = {"prompt": str, "question": str, "answers": list, "max_tokens": int}


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
        fields = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(
            f'prompt {number} is not JSON ({error}); write {{"prompt": "..."}} on each line', "prompts"
        ) from error
    _check(number, fields)
    question = fields.get("question", "")
    return Sample(
        name=str(number),
        context=fields["prompt"],
        question=f"{BETWEEN}{question}" if question else "",
        references=tuple(map(str, fields.get("answers", ()))),
        answer_tokens=fields.get("max_tokens", ANSWER_TOKENS),
    )


def _check(number: int, fields: Any) -> None:
    """Raise InvalidRequest unless a prompt has the fields of the module's docstring."""
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise InvalidRequest(f'prompt {number} has no "prompt"; write {{"prompt": "..."}} on each line', "prompts")
    for name, value in fields.items():
        if name not in KINDS or not isinstance(value, KINDS[name]):
            raise InvalidRequest(
                f'prompt {number} has an invalid "{name}"; the fields are '
                + ", ".join(f'"{field}" ({kind.__name__})' for field, kind in KINDS.items()),
                "prompts",
            )
    if fields.get("max_tokens", 1) < 1:
        raise InvalidRequest(
            f'prompt {number} has "max_tokens" {fields["max_tokens"]}; it must be at least 1', "prompts"
        )
