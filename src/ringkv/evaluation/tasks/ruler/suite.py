"""RULER's 13 tasks, generated at any length: each a recipe for a draft, and the search for the length asked.

Source: RULER (arXiv 2404.06654). Prompts follow its parts and settings; the sentences are ours, and prose and passages
are those at hand, so figures stand beside the paper's and do not repeat them. Chains of names are traced
without a worked example.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.tasks.draft import Draft, Fit, places
from ringkv.evaluation.tasks.ruler import questions
from ringkv.evaluation.tasks.ruler.counting import common_words, frequent_words
from ringkv.evaluation.tasks.ruler.needles import RETRIEVAL
from ringkv.evaluation.tasks.ruler.questions import Question
from ringkv.evaluation.tasks.ruler.tracing import tracing
from ringkv.evaluation.tasks.source import Source


class Recipe(Protocol):
    """The same draft each time; `depth` is where a lone needle stands."""

    def __call__(self, seed: str, hay: int, depth: float, data: Path | None) -> Draft: ...


GENERATED: Mapping[str, Recipe] = {
    **{name: needles.draft for name, needles in RETRIEVAL.items()},
    "vt": tracing,
    "cwe": common_words,
    "fwe": frequent_words,
}
ANSWER_TOKENS = {"vt": 60, "cwe": 120, "fwe": 50}  # 128 for needles


def generated(name: str, source: Source) -> Iterator[Sample]:
    for length, place, depth in places(source):
        make = partial(GENERATED[name], f"{source.seed}/{name}/{length}/{place}", depth=depth, data=source.data)
        yield Fit(f"{length}/{place}", ANSWER_TOKENS.get(name, 128), length, source)(make)


def asked(name: str, source: Source) -> Iterator[Sample]:
    """The same of questions with passages: at each length the first `source.count` whose own passages fit."""
    pool = POOLS[name](source)
    for length in source.lengths:
        yield from islice(_fitting(name, pool, length, source), source.count)


def _fitting(name: str, pool: Sequence[Question], length: int, source: Source) -> Iterator[Sample]:
    for place in range(len(pool)):
        with suppress(CannotMake):
            make = partial(questions.draft, pool, place, f"{source.seed}/{name}/{length}/{place}")
            yield Fit(f"{length}/{place}", 32, length, source)(make)


POOLS = {"qa_1": questions.documents, "qa_2": questions.several}
