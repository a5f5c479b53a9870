"""WikiText-2: perplexity of the text after a compressed prefix, token by token through decode steps.

The perplexity of a prompt does not depend on the cache, because it is computed before eviction. Here a prefix is
prefilled and compressed, and the following tokens are fed one at a time, like generated ones.
"""

from collections.abc import Iterator
from statistics import fmean

from ringkv.evaluation.sample import Answer, Sample
from ringkv.evaluation.tasks.source import Source

FOLLOWING = 256  # scored tokens, approximately
SPARE = 16  # tokens of margin, because a passage ends at a word


def wikitext(source: Source) -> Iterator[Sample]:
    """Yield `source.count` consecutive passages for each length, wrapping to the text's start at its end."""
    text = source.text("text", "wikitext-2_test.txt")
    start = 0
    for length in source.lengths:
        for place in range(source.count):
            before = _passage(source, text, start, length - FOLLOWING - SPARE)
            after = _passage(source, text, start + before, FOLLOWING)
            if start + before + after >= len(text):
                start, before = 0, _passage(source, text, 0, length - FOLLOWING - SPARE)
                after = _passage(source, text, before, FOLLOWING)
            yield Sample(
                name=f"{length}/{place}",
                context=text[start : start + before],
                question=text[start + before : start + before + after],
                answer_tokens=0,
                is_chat=False,
                facts={"length": length},
            )
            start += before + after


def mean_logprob(answer: Answer, sample: Sample) -> float:
    return fmean(answer.logprobs)


def _passage(source: Source, text: str, start: int, tokens: int) -> int:
    """Return the number of characters from `start` that have about this many tokens, up to the end of a word."""
    guess = 4 * tokens
    for _ in range(4):
        counted = source.count_tokens(Sample("", text[start : start + guess], is_chat=False))
        guess = max(1, round(guess * tokens / max(1, counted)))
    space = text.find(" ", start + guess)
    return (space if space > 0 else len(text)) - start
