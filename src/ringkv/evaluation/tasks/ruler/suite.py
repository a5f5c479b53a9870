"""RULER's 13 tasks, generated at any length. Each task is a recipe for drafts; a search fits a draft to the length.

Source: RULER (arXiv 2404.06654). Prompts have its parts and settings, but our sentences and other prose and passages,
so scores are comparable to the paper's, not equal. Variable tracking has no worked example.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from string import ascii_uppercase

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.tasks.draft import fitted, generated
from ringkv.evaluation.tasks.ruler import questions
from ringkv.evaluation.tasks.ruler.counting import common_words, distinct_words, frequent_words
from ringkv.evaluation.tasks.ruler.needles import NOISE, RETRIEVAL
from ringkv.evaluation.tasks.ruler.questions import Question
from ringkv.evaluation.tasks.source import Source

HOPS = 4  # of a chain of assignments
Recipe = Callable[..., Sample]  # makes a draft of a seed, its hay, the depth of a single needle and the data


def tracing(seed: str, hay: int, depth: float, data: Path | None) -> Sample:
    """Return a draft with one chain of assignments in order, at random places among `hay` lines of noise.

    Source: RULER, section 3, variable tracking. The question is for all variables that have the value.
    """
    rng = Random(seed)
    names = distinct_words(rng, ascii_uppercase, 5, HOPS + 1)
    value = str(rng.randint(10_000, 99_999))
    assignments = [f"VAR {names[0]} = {value}"]
    assignments += [f"VAR {to} = VAR {source}" for source, to in pairwise(names)]
    places = sorted(rng.randint(0, hay) for _ in assignments)
    lines: list[str] = []
    for line in range(hay + 1):
        lines += [text for text, place in zip(assignments, places, strict=True) if place == line]
        lines += [NOISE] * (line < hay)
    return Sample(
        context="Variables are given values in the text below, or the value of another. Follow them.\n\n"
        + "\n".join(lines),
        question=f"\n\nWhich variables hold the value {value} in the text above? Name all of them.",
        begin=f" Following the assignments, {len(names)} variables hold the value {value}:",
        references=tuple(names),
    )


GENERATED: Mapping[str, Recipe] = {
    **{name: needles.draft for name, needles in RETRIEVAL.items()},
    "vt": tracing,
    "cwe": common_words,
    "fwe": frequent_words,
}
ANSWER_TOKENS = {"vt": 60, "cwe": 120, "fwe": 50}  # 128 for needles


def generated_samples(name: str, source: Source) -> Iterator[Sample]:
    return generated(partial(GENERATED[name], data=source.data), name, ANSWER_TOKENS.get(name, 128), source)


def question_samples(name: str, source: Source) -> Iterator[Sample]:
    """Yield, for each length, the first `source.count` questions whose own passages fit."""
    pool = POOLS[name](source)
    for length in source.lengths:
        yield from islice(_fitting(name, pool, length, source), source.count)


def _fitting(name: str, pool: Sequence[Question], length: int, source: Source) -> Iterator[Sample]:
    for place in range(len(pool)):
        with suppress(CannotMake):
            make = partial(questions.draft, pool, place, f"{source.seed}/{name}/{length}/{place}")
            yield fitted(make, f"{length}/{place}", 32, length, source)


POOLS = {"qa_1": questions.documents, "qa_2": questions.several}
