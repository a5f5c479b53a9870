"""Compressed: the prefixes of prompts that several requests share, one for each choice of cache."""

from collections.abc import Collection
from typing import Any

from ringkv.base.engine import Engine, Prefix
from ringkv.base.kv import KVChoice


class Compressed:
    """Keyed by lane: the engine's handle of the staged prompt, and what it was compressed to so far."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lanes: dict[int, tuple[Any, dict[KVChoice, Prefix]]] = {}

    def stage(self, lane: int, staged: Any) -> None:
        """A prompt was prefilled whole."""
        self._lanes[lane] = staged, {}

    def prefix(self, lane: int, choice: KVChoice) -> Prefix:
        """The lane's prompt under this choice, compressed at the first call. Raises what the engine raises."""
        staged, prefixes = self._lanes[lane]
        if choice not in prefixes:
            prefixes[choice] = self._engine.compress(staged, choice)
        return prefixes[choice]

    def keep(self, lanes: Collection[int]) -> None:
        """Forget all other lanes: a prefix may take much memory."""
        self._lanes = {lane: one for lane, one in self._lanes.items() if lane in lanes}
