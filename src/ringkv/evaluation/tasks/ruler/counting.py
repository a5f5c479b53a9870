"""Counting: find the words that occur most often in a list or text (RULER: aggregation).

Source: RULER (arXiv 2404.06654), section 3: common words occur 30 times each and others 3 times; frequent words follow
a zeta distribution.
"""

from collections import Counter
from pathlib import Path
from random import Random
from string import ascii_lowercase

from ringkv.evaluation.sample import Sample
from ringkv.evaluation.tasks.ruler.needles import MAKERS
from ringkv.evaluation.tasks.texts import words

COMMON, OFTEN, SELDOM = 10, 30, 3  # number of common words; occurrences of each; occurrences of other words
DOTS = "..."  # the most frequent token, which is noise
FREQUENT, ALPHA, LETTERS = 3, 2.0, 6  # words to find; exponent; letters of a coded word
EACH = 50  # average occurrences of a coded word
EXAMPLE = 20  # uncommon words of the worked example


def common_words(seed: str, hay: int, depth: float, data: Path | None) -> Sample:
    """Return a draft with the common words and `hay` uncommon ones, after a short worked example."""
    rng = Random(seed)
    shown, hidden = _different(rng, COMMON + EXAMPLE), _different(rng, COMMON + hay)
    example, listed = _list(rng, shown, often=10, seldom=1), _list(rng, hidden, OFTEN, SELDOM)
    return Sample(
        context=f"{_instruction(example)}\n\n{QUESTION}\n{_answer(shown[:COMMON])}\n\n{_instruction(listed)}",
        question=f"\n\n{QUESTION}",
        begin=f" {BEGIN}",
        references=tuple(hidden[:COMMON]),
    )


QUESTION = f"Which {COMMON} words are the most common in the list above?"
BEGIN = f"The {COMMON} words that come most often in the list are:"


def _instruction(listed: str) -> str:
    return f"Below is a numbered list in which some words come more often than others. Find those.\n{listed}"


def _answer(common: list[str]) -> str:
    return f"{BEGIN} " + " ".join(f"{place}. {word}" for place, word in enumerate(common, 1))


def _list(rng: Random, kinds: list[str], often: int, seldom: int) -> str:
    """Return a numbered, shuffled list. The first `COMMON` words occur `often` times, the others `seldom` times."""
    listed = kinds[:COMMON] * often + kinds[COMMON:] * seldom
    rng.shuffle(listed)
    return " ".join(f"{place}. {word}" for place, word in enumerate(listed, 1))


def _different(rng: Random, count: int) -> list[str]:
    """Return `count` distinct words; if there are too few, also words joined in pairs."""
    single = [*words("noun"), *words("adjective")]
    more = [MAKERS["word"](rng) for _ in range(2 * max(0, count - len(single)))]
    return rng.sample(list(dict.fromkeys(single + more)), count)


def frequent_words(seed: str, hay: int, depth: float, data: Path | None) -> Sample:
    """Return a draft with about `hay` words, the k-th with a weight of k ** -ALPHA. The first one is dots.

    The three most frequent words get a few extra occurrences, so that the fourth is always less frequent.
    """
    rng = Random(seed)
    kinds = max(FREQUENT + 2, hay // EACH)
    names = [DOTS, *distinct_words(rng, ascii_lowercase, LETTERS, kinds - 1)]
    sampled = rng.choices(names, [(rank + 1) ** -ALPHA for rank in range(kinds)], k=hay)
    ranked = [word for word, _ in Counter(sampled).most_common() if word != DOTS]
    sampled += [name for place, name in enumerate((ranked + names[1:])[:FREQUENT]) for _ in range(FREQUENT - place)]
    rng.shuffle(sampled)
    return Sample(
        context="Below is a text in a code. Count how often each coded word comes, and find the three that come most "
        f"often.\n\n{' '.join(sampled)}",
        question=f"\n\nLeave the dots out. Which {FREQUENT} coded words come most often in the text above?",
        begin=f" The {FREQUENT} coded words that come most often are:",
        references=tuple(word for word, _ in Counter(sampled).most_common() if word != DOTS)[:FREQUENT],
    )


def distinct_words(rng: Random, letters: str, length: int, count: int) -> list[str]:
    """Return so many different words of random letters."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choices(letters, k=length))] = None
    return list(words)
