"""Scores computed by libraries, 0 to 1: ROUGE-L of summaries, and edit similarity of code."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ringkv.evaluation.scores.text import first_code_line


def rouge_l(text: str, references: Sequence[str]) -> float:
    """F1 of the longest common subsequence of words, with the best reference (Lin 2004; LongBench: summaries).

    Computed by Google's rouge-score. LongBench uses the older package `rouge`, which splits words at spaces only.
    """
    return max((_scorer().score(one, text)["rougeL"].fmeasure for one in references), default=0.0)


def edit_similarity(text: str, references: Sequence[str]) -> float:
    """1 less insertions and deletions over both lengths, for the first line of code (LongBench: completion)."""
    from rapidfuzz import fuzz

    line = first_code_line(text)
    return max((fuzz.ratio(line, one) / 100 for one in references), default=0.0)


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"])
