"""Questions: a question with the passages that answer it, among passages of other questions.

Source: RULER (arXiv 2404.06654), section 3, which uses SQuAD and HotpotQA. Here questions and passages are from
LongBench's files in the data folder: questions about one document (multifieldqa_en, qasper) and about several
(2wikimqa, musique). A sample always has its own passages, so few samples fit in short prompts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ringkv.evaluation.sample import Sample
from ringkv.evaluation.tasks.source import Source

PASSAGE = re.compile(r"^Passage \d+:\n", re.MULTILINE)
QUESTION = re.compile(r"\nQuestion: (.*)\nAnswer:\s*$", re.DOTALL)
RULES = "\n\nAnswer the question based on the given"  # the text after the passages
# file of single documents -> the text before the document, and after it
DOCUMENTS = {"multifieldqa_en": ("\n\n", "\n\nNow, answer the following question"), "qasper": ("passages.\n", RULES)}


@dataclass(frozen=True)
class Question:
    text: str
    passages: tuple[str, ...]
    references: tuple[str, ...]


def documents(source: Source) -> list[Question]:
    """Return questions about one document each."""
    return [
        _question(line, [line["prompt"].partition(start)[2].rpartition(end)[0].strip()])
        for name, (start, end) in DOCUMENTS.items()
        for line in source.lines("longbench", f"{name}.jsonl")
    ]


def several(source: Source) -> list[Question]:
    """Return questions about several passages each, those between "Passage 1:" and the rules."""
    return [
        _question(line, map(str.strip, PASSAGE.split(line["prompt"].rpartition(RULES)[0])[1:]))
        for name in ("2wikimqa", "musique")
        for line in source.lines("longbench", f"{name}.jsonl")
    ]


def _question(line: Mapping[str, Any], passages: Iterable[str]) -> Question:
    text = QUESTION.search(line["prompt"])
    assert text is not None, "a LongBench prompt ends with its question"
    return Question(text[1].strip(), tuple(passages), tuple(line["answers"]))


def draft(questions: Sequence[Question], index: int, seed: str, hay: int) -> Sample:
    """Return question `index` with its passages and up to `hay` - 1 others, shuffled."""
    rng = Random(seed)
    asked = questions[index]
    others = [passage for place, question in enumerate(questions) if place != index for passage in question.passages]
    rng.shuffle(others)
    passages = [*asked.passages, *(other for other in others[: max(0, hay - 1)] if other not in asked.passages)]
    rng.shuffle(passages)
    listed = "\n\n".join(f"Document {place}:\n{passage}" for place, passage in enumerate(passages, 1))
    return Sample(
        context=f"Answer a question from the documents below, in as few words as possible.\n\n{listed}",
        question=f"\n\nQuestion: {asked.text}",
        begin=" Answer:",
        references=asked.references,
    )
