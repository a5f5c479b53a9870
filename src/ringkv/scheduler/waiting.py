"""WaitingPrompts: the prompts that wait for a slot and a lane, and whose turn it is.

The next prompt has the lowest priority number. Among those it is of the owner with the fewest slots, then of the owner
who was served the fewest tokens recently, then the prompt that arrived first. So of equal
priority an owner with one request gets the next slot before one with 1,000, and an owner's own requests start in order
of arrival. A lower priority number always comes first, however long the others wait.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from itertools import islice
from operator import attrgetter

from ringkv.scheduler.job import PendingPrompt

LOOK_AHEAD = 16
HALF_LIFE = 1 << 16  # tokens served to all owners after which an older token counts half
_arrival = attrgetter("arrival")


class Shares:
    """Prefilled and generated tokens by owner. Old tokens fade by the tokens served since, not by time."""

    def __init__(self, half_life: int = HALF_LIFE) -> None:
        self._half_life = half_life
        self._served: dict[str, float] = {}
        self._since = 0  # tokens since they were last halved

    def of(self, owner: str) -> float:
        return self._served.get(owner, 0.0)

    def serve(self, owner: str, tokens: int) -> None:
        self._served[owner] = self.of(owner) + tokens
        self._since += tokens
        while self._since >= self._half_life:
            self._since -= self._half_life
            # Below one token an owner is forgotten, so that owners who left take no memory.
            self._served = {name: served / 2 for name, served in self._served.items() if served >= 2}


class WaitingPrompts:
    def __init__(self) -> None:
        self._lines: dict[int, dict[str, list[PendingPrompt]]] = {}  # by priority and owner, in order of arrival

    def update(self, prompt: PendingPrompt) -> None:
        """Put a prompt that waits in its line, or take it out while one of its requests is held. It keeps its place."""
        self.discard(prompt)
        if prompt.jobs and prompt.lane is None and not prompt.is_held:
            owners = self._lines.setdefault(prompt.priority, {})
            insort(owners.setdefault(prompt.owner, []), prompt, key=_arrival)

    def discard(self, prompt: PendingPrompt) -> None:
        """Take a prompt out of its line, if it is there."""
        owners = self._lines.get(prompt.priority, {})
        line = owners.get(prompt.owner, [])
        index = bisect_left(line, prompt.arrival, key=_arrival)
        if index == len(line) or line[index] is not prompt:
            return
        del line[index]
        if not line:
            del owners[prompt.owner]
        if not owners:
            del self._lines[prompt.priority]

    def first(
        self, slots: Mapping[str, int], shares: Shares, ready: Callable[[PendingPrompt], bool] = lambda prompt: True
    ) -> PendingPrompt | None:
        """Return the prompt whose turn it is. slots: by owner, those that it has or will take; missing owners have 0.

        ready: prompts for which it is False are passed over, at most LOOK_AHEAD of an owner.
        """
        if not self._lines:
            return None
        lines = self._lines[min(self._lines)].values()
        return min(
            (prompt for line in lines for prompt in islice(filter(ready, line[:LOOK_AHEAD]), 1)),
            key=lambda prompt: turn(prompt, slots, shares),
            default=None,
        )

    def __bool__(self) -> bool:
        return bool(self._lines)


def turn(prompt: PendingPrompt, slots: Mapping[str, int], shares: Shares) -> tuple[int, int, float, int]:
    """Return what orders prompts: the lowest comes first. slots: as for `WaitingPrompts.first`."""
    return prompt.priority, slots.get(prompt.owner, 0), shares.of(prompt.owner), prompt.arrival
