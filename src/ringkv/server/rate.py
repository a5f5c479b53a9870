"""RateLimit: a token bucket for each API key."""

from collections.abc import Callable
from math import ceil
from time import monotonic

from ringkv.base.errors import RateLimited

MINUTE = 60.0


class RateLimit:
    """Allows `per_minute` requests a minute to each label, and as many at once after a quiet minute.

    A server without keys has one label, so all its callers share the limit. clock: returns seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._buckets: dict[str, tuple[float, float]] = {}  # label -> requests left, and when

    def take(self, label: str) -> None:
        """Count one request. Raises RateLimited, and then does not count it."""
        now = self._clock()
        left, since = self._buckets.get(label, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - since) * self._per_minute / MINUTE)
        if left < 1:
            seconds = max(1, ceil((1 - left) * MINUTE / self._per_minute))
            who = f"the API key {label}" if label else "this server"
            raise RateLimited(
                f"{who} has {self._per_minute:,} requests a minute, and they are used up; send it again in {seconds} s",
                seconds,
            )
        self._buckets[label] = (left - 1, now)
