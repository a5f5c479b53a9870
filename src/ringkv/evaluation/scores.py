"""Scores of answers from 0 to 1, from the definitions in the papers of LongBench, RULER, GSM8K and LongBench-v2.

LongBench: arXiv 2308.14508, section 4. RULER: arXiv 2404.06654, section 3. GSM8K: arXiv 2110.14168. LongBench-v2: arXiv
2412.15204. Programs are scored in `sandbox`.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
NO_CODE = ("`", "#", "//")  # in a line that is a comment or a fence
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
LETTERS = (
    re.compile(r"correct answer is:? \(?([A-D])\b"),
    re.compile(r"\(([A-D])\)"),
    re.compile(r"^\s*([A-D])\b(?! \w)"),
)


def all_found(text: str, references: Sequence[str]) -> float:
    """The share of references that are in the text, ignoring case (RULER: retrieval, tracing, aggregation)."""
    lower = text.lower()
    return sum(reference.lower() in lower for reference in references) / len(references)


def any_found(text: str, references: Sequence[str]) -> float:
    """1 if any reference is in the text (RULER: question answering)."""
    return float(all_found(text, references) > 0)


def f1(text: str, references: Sequence[str]) -> float:
    """F1 of the words in common with the best reference (SQuAD's F1)."""

    def words(of: str) -> Counter[str]:
        return Counter(ARTICLES.sub(" ", of.lower().translate(NO_PUNCTUATION)).split())

    answer, scores = words(text), [0.0]
    for reference in map(words, references):
        if common := (answer & reference).total():
            scores.append(2 * common / (answer.total() + reference.total()))
    return max(scores)


def class_named(text: str, references: Sequence[str], classes: Sequence[str]) -> float:
    """One over the number of classes that the text names, if the right one is among them; otherwise 0.

    A class whose name is part of the right one's is not counted.
    """
    scores = [0.0]
    for right in references:
        named = [name for name in classes if name in text and (name == right or name not in right)]
        scores += [1 / len(named)] if right in named else []
    return max(scores)


def numbers_right(text: str, references: Sequence[str]) -> float:
    """The share of the text's numbers that are right (LongBench: counting)."""
    numbers = re.findall(r"\d+", text)
    return max((numbers.count(right) / len(numbers) for right in references), default=0.0) if numbers else 0.0


def paragraph_right(text: str, references: Sequence[str]) -> float:
    """The share of the text's numbers that are right, for references such as "Paragraph 7" (LongBench: retrieval)."""
    return numbers_right(text, [re.findall(r"\d+", reference)[-1] for reference in references])


def first_line(text: str) -> str:
    """Return the first line, for models that continue with examples of their own (LongBench: few-shot tasks)."""
    return text.lstrip("\n").split("\n")[0]


def last_number_right(text: str, references: Sequence[str]) -> float:
    """Whether the last number equals a reference. A number in a box takes precedence, as AIME's prompts request."""
    boxed = BOXED.findall(text)
    numbers = NUMBER.findall(boxed[-1] if boxed else text)
    right = {float(reference.replace(",", "")) for reference in references}
    return float(bool(numbers) and float(numbers[-1].replace(",", "")) in right)


def letter_right(text: str, references: Sequence[str]) -> float:
    """Whether the letter of the answer is the reference. Patterns are tried from the most explicit one."""
    matches = (pattern.search(text.replace("*", "")) for pattern in LETTERS)
    first = next(filter(None, matches), None)
    return float(first is not None and first[1] in references)


def rouge_l(text: str, references: Sequence[str]) -> float:
    """F1 of the longest common subsequence of words, with the best reference (Lin 2004; LongBench: summaries).

    Computed by Google's rouge-score. LongBench uses the older package `rouge`, which splits words at spaces only.
    """
    return max((_rouge().score(reference, text)["rougeL"].fmeasure for reference in references), default=0.0)


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"])


def edit_similarity(text: str, references: Sequence[str]) -> float:
    """1 less insertions and deletions over both lengths, for the first line of code (LongBench: completion)."""
    from rapidfuzz import fuzz

    lines = text.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in NO_CODE)), "")
    return max((fuzz.ratio(code, reference) / 100 for reference in references), default=0.0)
