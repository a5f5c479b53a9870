"""LongBench: real documents with questions, summaries, examples and code; prompts are those of the data folder.

Source: LongBench (arXiv 2308.14508). Answer lengths, scores and which tasks go without a chat template are its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ringkv.evaluation.sample import Answer, Sample, Score, of_text
from ringkv.evaluation.scores.libraries import edit_similarity, rouge_l
from ringkv.evaluation.scores.text import class_named, f1, first_line, numbers_right, paragraph_right
from ringkv.evaluation.tasks.source import Source


class Kind(NamedTuple):
    """`is_chat` False: few-shot examples and code, which a chat template would break."""

    score: Score
    answer_tokens: int
    is_chat: bool = True


def _of_line(score: Callable[[str, Sequence[str]], float]) -> Score:
    """Of the first line only: models go on with examples of their own."""
    return lambda answer, sample: score(first_line(answer.text), sample.references)


def _class(answer: Answer, sample: Sample) -> float:
    return class_named(first_line(answer.text), sample.references, sample.choices)


LONGBENCH: Mapping[str, Kind] = {
    "narrativeqa": Kind(of_text(f1), 128),
    "qasper": Kind(of_text(f1), 128),
    "multifieldqa_en": Kind(of_text(f1), 64),
    "hotpotqa": Kind(of_text(f1), 32),
    "2wikimqa": Kind(of_text(f1), 32),
    "musique": Kind(of_text(f1), 32),
    "gov_report": Kind(of_text(rouge_l), 512),
    "qmsum": Kind(of_text(rouge_l), 512),
    "multi_news": Kind(of_text(rouge_l), 512),
    "trec": Kind(_class, 64, is_chat=False),
    "triviaqa": Kind(_of_line(f1), 32, is_chat=False),
    "samsum": Kind(_of_line(rouge_l), 128, is_chat=False),
    "passage_count": Kind(of_text(numbers_right), 32),
    "passage_retrieval_en": Kind(of_text(paragraph_right), 32),
    "lcc": Kind(of_text(edit_similarity), 64, is_chat=False),
    "repobench-p": Kind(of_text(edit_similarity), 64, is_chat=False),
}


def samples(name: str, source: Source) -> Iterator[Sample]:
    """The first `source.count` of the file."""
    kind = LONGBENCH[name]
    for line, _ in zip(source.lines("longbench", f"{name}.jsonl"), range(source.count), strict=False):
        yield Sample(
            name=str(line["idx"]),
            context=line["prompt"],
            references=tuple(line["answers"]),
            choices=tuple(line.get("all_classes") or ()),
            answer_tokens=kind.answer_tokens,
            is_chat=kind.is_chat,
        )
