"""Scores of answers that end with a number or letter, 0 or 1.

GSM8K: arXiv 2110.14168. LongBench-v2: arXiv 2412.15204.
"""

import re
from collections.abc import Sequence

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
LETTERS = (
    re.compile(r"correct answer is:? \(?([A-D])\b"),
    re.compile(r"\(([A-D])\)"),
    re.compile(r"^\s*([A-D])\b(?! \w)"),
)


def last_number_right(text: str, references: Sequence[str]) -> float:
    """Whether the last number equals a reference. A number in a box takes precedence, as AIME's prompts request."""
    boxed = BOXED.findall(text)
    numbers = NUMBER.findall(boxed[-1] if boxed else text)
    return float(bool(numbers) and any(_value(numbers[-1]) == _value(one) for one in references))


def letter_right(text: str, references: Sequence[str]) -> float:
    """Whether the letter of the answer is the reference. Patterns are tried from the most explicit one."""
    for pattern in LETTERS:
        if found := pattern.search(text.replace("*", "")):
            return float(found[1] in references)
    return 0.0


def _value(number: str) -> float:
    return float(number.replace(",", ""))
