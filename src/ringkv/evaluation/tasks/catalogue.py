"""All tasks by name and by group: the source of their samples, and the score of answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import Sample, Score, of_text
from ringkv.evaluation.scores.numbers import last_number_right, letter_right
from ringkv.evaluation.scores.text import all_found, any_found, f1
from ringkv.evaluation.tasks import documents, longbench, lookups, own, recall, writing
from ringkv.evaluation.tasks.ruler import suite
from ringkv.evaluation.tasks.source import Source
from ringkv.evaluation.tasks.wikitext import mean_logprob, wikitext


@dataclass(frozen=True)
class Task:
    """is_loss: scores are mean log-probabilities, shown as a perplexity. Other scores are shares, shown in percent.

    has_question: the question can be fed after compression. is_relative: scores are of the agreement with the full
    cache's answers (`evaluation.agreement`).
    """

    name: str
    group: str
    samples: Callable[[Source], Iterator[Sample]]
    score: Score
    has_question: bool = False
    is_loss: bool = False
    is_relative: bool = False


def _ruler() -> Iterator[Task]:
    for name in suite.GENERATED:
        yield Task(name, "ruler", partial(suite.generated_samples, name), of_text(all_found), has_question=True)
    for name in suite.POOLS:
        yield Task(name, "ruler", partial(suite.question_samples, name), of_text(any_found), has_question=True)


def _longbench() -> Iterator[Task]:
    for name, kind in longbench.LONGBENCH.items():
        yield Task(name, "longbench", partial(longbench.samples, name), kind.score)


def _lookups() -> Iterator[Task]:
    samples = {name: partial(lookups.fitted, name) for name in ("passkeys", "registers", "conversation")}
    samples |= {f"dictionary_{keys}": partial(lookups.dictionary, keys) for keys in lookups.DICTIONARIES}
    for name, each in samples.items():
        yield Task(name, "lists", each, of_text(all_found), has_question=True)


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        *_ruler(),
        *_longbench(),
        Task("longbench_v2", "documents", documents.longbench_v2, of_text(letter_right), has_question=True),
        Task("longeval", "documents", documents.longeval, of_text(all_found)),
        Task("passkey", "documents", documents.passkey, of_text(all_found), has_question=True),
        Task("gsm8k", "writing", writing.gsm8k, of_text(last_number_right)),
        Task("aime24", "writing", writing.aime24, of_text(last_number_right)),
        Task("humaneval", "writing", writing.humaneval, writing.runs),
        Task("leetcode", "writing", writing.leetcode, writing.runs),
        Task("wikitext", "text", wikitext, mean_logprob, is_loss=True),
        Task("recall", "lists", recall.samples, of_text(all_found), has_question=True),
        *_lookups(),
        Task("answers", "own", own.with_answers, of_text(any_found), has_question=True),
        Task("agreement", "own", own.without_answers, of_text(f1), has_question=True, is_relative=True),
    )
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    group: tuple(task.name for task in TASKS.values() if task.group == group)
    for group in dict.fromkeys(task.group for task in TASKS.values())
}


def select_tasks(names: Sequence[str]) -> list[Task]:
    """Return tasks by name or group, each once. Raises InvalidRequest with all names."""
    found: dict[str, Task] = {}
    for name in names:
        if name not in GROUPS and name not in TASKS:
            raise InvalidRequest(
                f"there is no task {name!r}; there are the groups {', '.join(GROUPS)} and the tasks {', '.join(TASKS)}",
                "tasks",
            )
        found |= {one: TASKS[one] for one in GROUPS.get(name, (name,))}
    return list(found.values())
