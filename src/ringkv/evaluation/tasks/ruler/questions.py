"""Questions: a question with the passages that answer it, among passages of other questions.

Source: RULER (arXiv 2404.06654), section 3, which uses SQuAD and HotpotQA. Here questions and passages are from
LongBench's files in the data folder: questions about one document (multifieldqa_en, qasper) and about several
(2wikimqa, musique). A sample always has its own passages, so few samples fit in short prompts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from ringkv.evaluation.tasks.draft import Draft
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
        Question(_question(line["prompt"]), (_between(line["prompt"], *marks),), tuple(line["answers"]))
        for name, marks in DOCUMENTS.items()
        for line in source.lines("longbench", f"{name}.jsonl")
    ]


def several(source: Source) -> list[Question]:
    """Return questions about several passages each."""
    return [
        Question(_question(line["prompt"]), tuple(_passages(line["prompt"])), tuple(line["answers"]))
        for name in ("2wikimqa", "musique")
        for line in source.lines("longbench", f"{name}.jsonl")
    ]


def draft(questions: Sequence[Question], index: int, seed: str, hay: int) -> Draft:
    """Return question `index` with its passages and up to `hay` - 1 others, shuffled."""
    rng = Random(seed)
    own = questions[index]
    others = [one for place, question in enumerate(questions) if place != index for one in question.passages]
    rng.shuffle(others)
    passages = [*own.passages, *(one for one in others[: max(0, hay - 1)] if one not in own.passages)]
    rng.shuffle(passages)
    listed = "\n\n".join(f"Document {place}:\n{one}" for place, one in enumerate(passages, 1))
    return Draft(
        context=f"Answer a question from the documents below, in as few words as possible.\n\n{listed}",
        question=f"\n\nQuestion: {own.text}",
        begin=" Answer:",
        references=own.references,
    )


def _passages(prompt: str) -> Iterator[str]:
    """Yield the passages between "Passage 1:" and the rules."""
    body = prompt[: prompt.rindex(RULES)]
    return (one.strip() for one in PASSAGE.split(body)[1:])


def _question(prompt: str) -> str:
    found = QUESTION.search(prompt)
    assert found is not None, "a LongBench prompt ends with its question"
    return found[1].strip()


def _between(text: str, start: str, end: str) -> str:
    return text[text.index(start) + len(start) : text.rindex(end)].strip()
