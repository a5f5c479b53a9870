"""Counting: lists of words in which some come more often than all others, which are asked for (RULER: aggregation).

Source: RULER (arXiv 2404.06654), section 3: common words come 30 times each and others 3 times; frequent words follow a
zeta distribution.
"""

from collections import Counter
from pathlib import Path
from random import Random
from string import ascii_lowercase

from ringkv.evaluation.tasks.draft import Draft
from ringkv.evaluation.tasks.texts import words

COMMON, OFTEN, SELDOM = 10, 30, 3  # words, and times that each and every other comes
DOTS = "..."  # the likeliest of all: noise
FREQUENT, ALPHA, LETTERS = 3, 2.0, 6  # words asked for; of the distribution; of a coded word
EACH = 50  # times that a coded word comes, on average
EXAMPLE = 20  # uncommon words of the example, which has common ones 10 times each


def common_words(seed: str, hay: int, depth: float, data: Path | None) -> Draft:
    """`hay` uncommon words beside the common ones; an example with few words comes first."""
    rng = Random(seed)
    shown, picked = _different(rng, COMMON + EXAMPLE), _different(rng, COMMON + hay)
    example, listed = _list(rng, shown, often=10, seldom=1), _list(rng, picked, OFTEN, SELDOM)
    return Draft(
        context=f"{_told(example)}\n\n{QUESTION}\n{_answer(shown[:COMMON])}\n\n{_told(listed)}",
        question=f"\n\n{QUESTION}",
        begin=f" {BEGIN}",
        references=tuple(picked[:COMMON]),
    )


QUESTION = f"Which {COMMON} words are the most common in the list above?"
BEGIN = f"The {COMMON} words that come most often in the list are:"


def _told(listed: str) -> str:
    return f"Below is a numbered list in which some words come more often than others. Find those.\n{listed}"


def _answer(common: list[str]) -> str:
    return f"{BEGIN} " + " ".join(f"{place}. {word}" for place, word in enumerate(common, 1))


def _list(rng: Random, picked: list[str], often: int, seldom: int) -> str:
    """Numbered, in any order; the first of those picked are the common ones."""
    drawn = picked[:COMMON] * often + picked[COMMON:] * seldom
    rng.shuffle(drawn)
    return " ".join(f"{place}. {word}" for place, word in enumerate(drawn, 1))


def _different(rng: Random, count: int) -> list[str]:
    """So many words; where there are not as many, two joined are one."""
    single = [*words("noun"), *words("adjective")]
    more = [
        f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}" for _ in range(2 * max(0, count - len(single)))
    ]
    return rng.sample(list(dict.fromkeys(single + more)), count)


def frequent_words(seed: str, hay: int, depth: float, data: Path | None) -> Draft:
    """`hay` words in all, the k-th likeliest with probability k ** -ALPHA; dots stand for the first.

    The three that come most get a few more, so that none of them comes as often as the fourth.
    """
    rng = Random(seed)
    kinds = max(FREQUENT + 2, hay // EACH)
    names = [DOTS, *_coded(rng, kinds - 1)]
    drawn = rng.choices(names, [(rank + 1) ** -ALPHA for rank in range(kinds)], k=hay)
    ranked = [word for word, _ in Counter(drawn).most_common() if word != DOTS]
    drawn += [name for place, name in enumerate((ranked + names[1:])[:FREQUENT]) for _ in range(FREQUENT - place)]
    rng.shuffle(drawn)
    return Draft(
        context="Below is a text in a code. Count how often each coded word comes, and find the three that come most "
        f"often.\n\n{' '.join(drawn)}",
        question=f"\n\nLeave the dots out. Which {FREQUENT} coded words come most often in the text above?",
        begin=f" The {FREQUENT} coded words that come most often are:",
        references=tuple(word for word, _ in Counter(drawn).most_common() if word != DOTS)[:FREQUENT],
    )


def _coded(rng: Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(ascii_lowercase, k=LETTERS))] = None
    return list(found)
