"""agreement: scores of answers that nothing but the full cache's answers can be compared with."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ringkv.evaluation.cells import FULL
from ringkv.evaluation.journal import Record
from ringkv.evaluation.scores.text import f1
from ringkv.evaluation.tasks.catalogue import TASKS

Prompt = tuple[str, str, str]  # task, place, sample


def scored(records: Iterable[Record], known: Sequence[Record]) -> Iterator[Record]:
    """Yield the records; those of relative tasks after the full cache's answer to their prompt, with their scores.

    known: earlier answers, with their texts. A record whose prompt the full cache does not answer is a failure.
    """
    full = {one.key[:3]: one for one in known if one.cell == FULL}
    waiting: dict[Prompt, list[Record]] = defaultdict(list)
    for record in records:
        prompt = record.key[:3]
        if not TASKS[record.task].is_relative or (record.score is None and record.cell != FULL):
            yield record
        elif record.cell == FULL:
            full[prompt] = record
            yield _compared(record, record)
            yield from (_compared(one, record) for one in waiting.pop(prompt, ()))
        elif prompt in full:
            yield _compared(record, full[prompt])
        else:
            waiting[prompt].append(record)


def _compared(record: Record, full: Record) -> Record:
    """Return a record with its score: F1 of the words that it has in common with the full cache's answer."""
    if full.score is None:
        error = full.error if record is full else "the full cache has no answer to compare with"
        return replace(record, score=None, error=error)
    return replace(record, score=1.0 if record.text == full.text else f1(record.text, (full.text,)))
