"""LongBench: questions, summaries, few-shot examples and code on real documents, with the prompts of the data folder.

Source: LongBench (arXiv 2308.14508), also for answer lengths, scores and the tasks without a chat template.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ringkv.evaluation.sample import Answer, Sample, Score, of_text
from ringkv.evaluation.scores.libraries import edit_similarity, rouge_l
from ringkv.evaluation.scores.text import class_named, f1, first_line, numbers_right, paragraph_right
from ringkv.evaluation.tasks.source import Source


class LongBenchTask(NamedTuple):
    """is_chat: False for few-shot examples and code, which a chat template would break."""

    score: Score
    answer_tokens: int
    is_chat: bool = True


def _of_line(score: Callable[[str, Sequence[str]], float]) -> Score:
    """Score the first line only, because models continue with examples of their own."""
    return lambda answer, sample: score(first_line(answer.text), sample.references)


def _class(answer: Answer, sample: Sample) -> float:
    return class_named(first_line(answer.text), sample.references, sample.choices)


LONGBENCH: Mapping[str, LongBenchTask] = {
    "narrativeqa": LongBenchTask(of_text(f1), 128),
    "qasper": LongBenchTask(of_text(f1), 128),
    "multifieldqa_en": LongBenchTask(of_text(f1), 64),
    "hotpotqa": LongBenchTask(of_text(f1), 32),
    "2wikimqa": LongBenchTask(of_text(f1), 32),
    "musique": LongBenchTask(of_text(f1), 32),
    "gov_report": LongBenchTask(of_text(rouge_l), 512),
    "qmsum": LongBenchTask(of_text(rouge_l), 512),
    "multi_news": LongBenchTask(of_text(rouge_l), 512),
    "trec": LongBenchTask(_class, 64, is_chat=False),
    "triviaqa": LongBenchTask(_of_line(f1), 32, is_chat=False),
    "samsum": LongBenchTask(_of_line(rouge_l), 128, is_chat=False),
    "passage_count": LongBenchTask(of_text(numbers_right), 32),
    "passage_retrieval_en": LongBenchTask(of_text(paragraph_right), 32),
    "lcc": LongBenchTask(of_text(edit_similarity), 64, is_chat=False),
    "repobench-p": LongBenchTask(of_text(edit_similarity), 64, is_chat=False),
}


def samples(name: str, source: Source) -> Iterator[Sample]:
    """Yield the first `source.count` samples of the file."""
    task = LONGBENCH[name]
    for line, _ in zip(source.lines("longbench", f"{name}.jsonl"), range(source.count), strict=False):
        yield Sample(
            name=str(line["idx"]),
            context=line["prompt"],
            references=tuple(line["answers"]),
            choices=tuple(line.get("all_classes") or ()),
            answer_tokens=task.answer_tokens,
            is_chat=task.is_chat,
        )
