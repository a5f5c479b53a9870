"""Scores that a well-kept library computes: ROUGE-L of summaries, edit similarity of code. 0 to 1."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ringkv.evaluation.scores.text import first_code_line


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Longest common subsequence of words, F1, with the nearest reference (Lin 2004; LongBench: summaries).

    Google's rouge-score; LongBench takes the older package `rouge`, which splits words at blanks only.
    """
    return max((_scorer().score(one, text)["rougeL"].fmeasure for one in references), default=0.0)


def edit_similarity(text: str, references: Sequence[str]) -> float:
    """Of the first line of code: 1 less insertions and deletions over both lengths (LongBench: completion)."""
    from rapidfuzz import fuzz

    line = first_code_line(text)
    return max((fuzz.ratio(line, one) / 100 for one in references), default=0.0)


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"])
