"""WikiText-2: how well a compressed prefix predicts the text that follows it, token by token through decode steps.

The perplexity of a prompt says nothing of a cache: it is computed before anything is evicted. Here a prefix is
prefilled and compressed, and the next tokens are fed one at a time, as generated ones are.
"""

from collections.abc import Iterator
from statistics import fmean

from ringkv.evaluation.sample import Answer, Sample
from ringkv.evaluation.tasks.source import Source

FOLLOWING = 256  # tokens scored, about
SPARE = 16  # tokens: stretches end with a word


def wikitext(source: Source) -> Iterator[Sample]:
    """`source.count` stretches for each length, one after another; round to the text's start where it ends."""
    text = source.text("text", "wikitext-2_test.txt")
    start = 0
    for length in source.lengths:
        for place in range(source.count):
            before = _stretch(source, text, start, length - FOLLOWING - SPARE)
            after = _stretch(source, text, start + before, FOLLOWING)
            if start + before + after >= len(text):
                start, before = 0, _stretch(source, text, 0, length - FOLLOWING - SPARE)
                after = _stretch(source, text, before, FOLLOWING)
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


def _stretch(source: Source, text: str, start: int, tokens: int) -> int:
    """The characters from `start` that make about so many tokens, to the end of a word."""
    guess = 4 * tokens
    for _ in range(4):
        there = source.tokens(Sample("", text[start : start + guess], is_chat=False))
        guess = max(1, round(guess * tokens / max(1, there)))
    space = text.find(" ", start + guess)
    return (space if space > 0 else len(text)) - start
