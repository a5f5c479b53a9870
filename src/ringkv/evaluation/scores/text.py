"""Scores of short answers, 0 to 1, from the definitions in the papers of LongBench and RULER.

LongBench: arXiv 2308.14508, section 4. RULER: arXiv 2404.06654, section 3.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
NO_CODE = ("`", "#", "//")  # in a line that is a comment or a fence


def all_found(text: str, references: Sequence[str]) -> float:
    """The share of references that are in the text, ignoring case (RULER: retrieval, tracing, aggregation)."""
    lower = text.lower()
    return sum(one.lower() in lower for one in references) / len(references)


def any_found(text: str, references: Sequence[str]) -> float:
    """1 if any reference is in the text (RULER: question answering)."""
    return float(all_found(text, references) > 0)


def f1(text: str, references: Sequence[str]) -> float:
    """F1 of the words in common with the best reference (SQuAD's F1)."""
    return max((_f1(_words(text), _words(one)) for one in references), default=0.0)


def class_named(text: str, references: Sequence[str], classes: Sequence[str]) -> float:
    """One over the number of classes that the text names, if the right one is among them; otherwise 0.

    A class whose name is part of the right one's is not counted.
    """
    return max((_class_named(text, one, classes) for one in references), default=0.0)


def numbers_right(text: str, references: Sequence[str]) -> float:
    """The share of the text's numbers that are right (LongBench: counting)."""
    numbers = re.findall(r"\d+", text)
    return max((numbers.count(one) / len(numbers) for one in references), default=0.0) if numbers else 0.0


def paragraph_right(text: str, references: Sequence[str]) -> float:
    """The share of the text's numbers that are right, for references such as "Paragraph 7" (LongBench: retrieval)."""
    return numbers_right(text, [re.findall(r"\d+", one)[-1] for one in references])


def first_code_line(text: str) -> str:
    """Return the first line that is code, or "" (LongBench: completion)."""
    lines = text.lstrip("\n").split("\n")
    return next((line for line in lines if not any(mark in line for mark in NO_CODE)), "")


def first_line(text: str) -> str:
    """Return the first line, for models that continue with examples of their own (LongBench: few-shot tasks)."""
    return text.lstrip("\n").split("\n")[0]


def _f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference)) if common else 0.0


def _words(text: str) -> list[str]:
    return ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()


def _class_named(text: str, right: str, classes: Sequence[str]) -> float:
    named = [one for one in classes if one in text and (one == right or one not in right)]
    return 1 / len(named) if right in named else 0.0
