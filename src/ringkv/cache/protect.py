"""protect: the prompt tokens that are never evicted, as spans. No torch.

n prompt tokens.
"""

from ringkv.base.kv import TokenSpan


def protected(spans: tuple[TokenSpan, ...], n: int) -> tuple[TokenSpan, ...]:
    """Return the spans within a prompt of n tokens, in order; those that overlap or touch are joined."""
    joined: list[TokenSpan] = []
    for start, stop in sorted(spans):
        start, stop = min(start, n), min(stop, n)
        if joined and start <= joined[-1][1]:
            start, stop = joined[-1][0], max(stop, joined.pop()[1])
        if start < stop:
            joined.append((start, stop))
    return tuple(joined)


def tokens(spans: tuple[TokenSpan, ...], first: int = 0) -> int:
    """Return the number of tokens at `first` or after it."""
    return sum(stop - max(start, first) for start, stop in spans if stop > first)


def end(spans: tuple[TokenSpan, ...]) -> int:
    """Return one past the last token; 0 without spans."""
    return spans[-1][1] if spans else 0
