"""All tasks by name and by group: the source of their samples, and the score of answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import Sample, Score, of_text
from ringkv.evaluation.scores import all_found, any_found, f1, last_number_right, letter_right
from ringkv.evaluation.tasks import data_sets, lookups, own, recall
from ringkv.evaluation.tasks.ruler import suite
from ringkv.evaluation.tasks.ruler.needles import RETRIEVAL
from ringkv.evaluation.tasks.source import Source


@dataclass(frozen=True)
class Task:
    """is_loss: scores are mean log-probabilities, shown as a perplexity. Other scores are shares, shown in percent.

    has_question: the question can be fed after compression. is_relative: scores are of the agreement with the full
    cache's answers (`evaluation.run.scored`).
    """

    name: str
    group: str
    samples: Callable[[Source], Iterator[Sample]]
    score: Score
    has_question: bool = False
    is_loss: bool = False
    is_relative: bool = False


def _tasks() -> Iterator[Task]:
    for name in suite.GENERATED:
        yield Task(name, "ruler", partial(suite.generated_samples, name), of_text(all_found), has_question=True)
    for name in suite.POOLS:
        yield Task(name, "ruler", partial(suite.question_samples, name), of_text(any_found), has_question=True)
    for name, task in data_sets.LONGBENCH.items():
        yield Task(name, "longbench", partial(data_sets.longbench, name), task.score)
    yield Task("longbench_v2", "documents", data_sets.longbench_v2, of_text(letter_right), has_question=True)
    yield Task("longeval", "documents", data_sets.longeval, of_text(all_found))
    yield Task("passkey", "documents", lookups.passkey, of_text(all_found), has_question=True)
    yield Task("gsm8k", "writing", data_sets.gsm8k, of_text(last_number_right))
    yield Task("aime24", "writing", data_sets.aime24, of_text(last_number_right))
    yield Task("humaneval", "writing", data_sets.humaneval, data_sets.runs)
    yield Task("leetcode", "writing", data_sets.leetcode, data_sets.runs)
    yield Task("wikitext", "text", data_sets.wikitext, lambda answer, _: fmean(answer.logprobs), is_loss=True)
    yield Task("recall", "lists", recall.samples, of_text(all_found), has_question=True)
    for name in ("passkeys", "registers", "conversation"):
        yield Task(name, "lists", partial(lookups.of_lengths, name), of_text(all_found), has_question=True)
    for keys in lookups.DICTIONARIES:
        samples = partial(lookups.dictionary, keys)
        yield Task(f"dictionary_{keys}", "lists", samples, of_text(all_found), has_question=True)
    yield Task("answers", "own", own.with_answers, of_text(any_found), has_question=True)
    yield Task("agreement", "own", own.without_answers, of_text(f1), has_question=True, is_relative=True)


TASKS: Mapping[str, Task] = {task.name: task for task in _tasks()}
GROUPS: Mapping[str, tuple[str, ...]] = {
    group: tuple(task.name for task in TASKS.values() if task.group == group)
    for group in dict.fromkeys(task.group for task in TASKS.values())
}


LOOK_UPS, QUESTIONS = "look-ups", "questions about texts"
KINDS: Mapping[str, str] = {
    **dict.fromkeys(RETRIEVAL, LOOK_UPS),
    **dict.fromkeys(("passkey", "longeval", "passage_retrieval_en", *GROUPS["lists"]), LOOK_UPS),
    "vt": "chains of names",
    **dict.fromkeys(("cwe", "fwe", "passage_count"), "counts over the whole prompt"),
    **dict.fromkeys(("qa_1", "qa_2", "narrativeqa", "qasper", "multifieldqa_en", "hotpotqa"), QUESTIONS),
    **dict.fromkeys(("2wikimqa", "musique", "triviaqa", "longbench_v2"), QUESTIONS),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), "summaries"),
    "trec": "classes by example",
    **dict.fromkeys(("lcc", "repobench-p", "humaneval", "leetcode"), "programs"),
    **dict.fromkeys(("gsm8k", "aime24"), "calculations"),
}
"""What tasks ask for, in plural words. A task that is not here is a kind of its own."""


def select_tasks(names: Sequence[str]) -> list[Task]:
    """Return tasks by name or group, each once. Raises InvalidRequest with all names."""
    selected: dict[str, Task] = {}
    for name in names:
        if name not in GROUPS and name not in TASKS:
            raise InvalidRequest(
                f"there is no task {name!r}; there are the groups {', '.join(GROUPS)} and the tasks {', '.join(TASKS)}",
                "tasks",
            )
        selected |= {task: TASKS[task] for task in GROUPS.get(name, (name,))}
    return list(selected.values())
