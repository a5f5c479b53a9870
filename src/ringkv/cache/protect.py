"""protect: the prompt tokens that a request must never lose, as spans. No torch.

n prompt tokens.
"""

from ringkv.base.kv import TokenSpan


def protected(asked: tuple[TokenSpan, ...], n: int) -> tuple[TokenSpan, ...]:
    """Spans of a prompt of n tokens, in order, none touching another."""
    found: list[TokenSpan] = []
    for start, stop in sorted(asked):
        start, stop = min(start, n), min(stop, n)
        if found and start <= found[-1][1]:
            start, stop = found[-1][0], max(stop, found.pop()[1])
        if start < stop:
            found.append((start, stop))
    return tuple(found)


def tokens(spans: tuple[TokenSpan, ...], first: int = 0) -> int:
    """How many there are at `first` or after it."""
    return sum(stop - max(start, first) for start, stop in spans if stop > first)


def end(spans: tuple[TokenSpan, ...]) -> int:
    """One past the last; 0 where there is none."""
    return spans[-1][1] if spans else 0
