"""Questions: a question and the passages that answer it, among passages of other questions.

Source: RULER (arXiv 2404.06654), section 3: paragraphs of SQuAD and HotpotQA among distracting ones. Here questions and
passages are those of LongBench's files in the data folder: one document (multifieldqa_en, qasper), and several that
must be joined (2wikimqa, musique). A sample's own passages are never left out, so short prompts have few samples.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from ringkv.evaluation.tasks.draft import Draft
from ringkv.evaluation.tasks.source import Source

PASSAGE = re.compile(r"^Passage \d+:\n", re.MULTILINE)
QUESTION = re.compile(r"\nQuestion: (.*)\nAnswer:\s*$", re.DOTALL)
RULES = "\n\nAnswer the question based on the given"  # what follows the passages
# file of single documents -> what stands before the document, and after it
DOCUMENTS = {"multifieldqa_en": ("\n\n", "\n\nNow, answer the following question"), "qasper": ("passages.\n", RULES)}


@dataclass(frozen=True)
class Question:
    text: str
    passages: tuple[str, ...]
    references: tuple[str, ...]


def documents(source: Source) -> list[Question]:
    """Of one document each."""
    return [
        Question(_asked(line["prompt"]), (_between(line["prompt"], *marks),), tuple(line["answers"]))
        for name, marks in DOCUMENTS.items()
        for line in source.lines("longbench", f"{name}.jsonl")
    ]


def several(source: Source) -> list[Question]:
    """Of several passages each."""
    return [
        Question(_asked(line["prompt"]), tuple(_passages(line["prompt"])), tuple(line["answers"]))
        for name in ("2wikimqa", "musique")
        for line in source.lines("longbench", f"{name}.jsonl")
    ]


def draft(questions: Sequence[Question], index: int, seed: str, hay: int) -> Draft:
    """Question `index`, its passages and `hay` others, shuffled."""
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
    """What stands between the first "Passage 1:" and the rules."""
    body = prompt[: prompt.rindex(RULES)]
    return (one.strip() for one in PASSAGE.split(body)[1:])


def _asked(prompt: str) -> str:
    found = QUESTION.search(prompt)
    assert found is not None, "a LongBench prompt ends with its question"
    return found[1].strip()


def _between(text: str, start: str, end: str) -> str:
    return text[text.index(start) + len(start) : text.rindex(end)].strip()
