"""Deadlines: when requests must end, by the caller's clock."""

from bisect import bisect_left, bisect_right, insort


class Deadlines:
    def __init__(self) -> None:
        self._when: dict[str, float] = {}
        self._sorted: list[tuple[float, str]] = []

    def set(self, request_id: str, when: float) -> None:
        """Set a request's deadline; it had none."""
        assert request_id not in self._when
        self._when[request_id] = when
        insort(self._sorted, (when, request_id))

    def drop(self, request_id: str) -> None:
        """Forget a request's deadline, if it has one."""
        if (when := self._when.pop(request_id, None)) is not None:
            del self._sorted[bisect_left(self._sorted, (when, request_id))]

    def due(self, now: float) -> list[str]:
        """Return the requests whose deadline is not after `now`, the earliest first."""
        end = bisect_right(self._sorted, now, key=lambda deadline: deadline[0])
        return [request_id for _, request_id in self._sorted[:end]]
