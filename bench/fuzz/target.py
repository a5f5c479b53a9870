"""Target: one kind of input, how it is made, and what reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from ringkv.base.errors import RingKVError


@dataclass(frozen=True)
class Target:
    """make: an input from random numbers. run: read the input in the child process. prepare: load what all cases share.

    refusals: errors that `run` may raise. seconds, memory_mb: limits of one case.
    """

    about: str
    make: Callable[[Random], Any]
    run: Callable[[Any], None]
    prepare: Callable[[], object]
    refusals: tuple[type[Exception], ...] = (RingKVError,)
    seconds: float = 10.0
    memory_mb: int = 512

    def case(self, seed: int, number: int) -> Any:
        """Return the input of one case, the same on every call."""
        return self.make(Random(f"{seed} {number}"))
