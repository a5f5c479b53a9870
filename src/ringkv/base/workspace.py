"""Workspace: the staged entries that a prompt may take. A longer prompt is compacted whenever they are full.

    tokens   0 ......... size | block | block | rest          block = size - kept
    lane     all of them      | `kept` best + block, before each block's first token

Where a lane is compacted depends on the token alone, never on chunks, other prompts or load.
"""

from math import lcm
from typing import NamedTuple

from ringkv.base.kv import BLOCK


class Workspace(NamedTuple):
    """size: entries of the longest lane. kept: those that a compaction leaves; `size` if no prompt is longer."""

    size: int
    kept: int

    @classmethod
    def of(cls, size: int, chunk: int) -> "Workspace":
        """Return a workspace of at least two `step`s, a multiple of it, for prompts that may be longer."""
        unit = step(chunk)
        assert size >= 2 * unit, "a compaction would leave nothing"
        assert size % unit == 0, "compactions would not lie between two chunks"
        return cls(size, max(unit, size * 7 // 8 // unit * unit))

    @property
    def block(self) -> int:
        """Tokens between two compactions."""
        return self.size - self.kept

    def compacts(self, token: int) -> bool:
        """Whether a lane is compacted before this token is prefilled."""
        return token >= self.size > self.kept and (token - self.size) % self.block == 0

    def dropped(self, token: int) -> int:
        """Return how many entries were evicted from each head before this token is prefilled."""
        return 0 if token < self.size or not self.block else ((token - self.size) // self.block + 1) * self.block

    def stop(self, token: int) -> int:
        """Return where a chunk that begins with this token ends at the latest: before the next compaction."""
        return self.size + self.dropped(token)


def workspace(size: int, longest: int, chunk: int) -> Workspace:
    """Return the workspace of so many entries; if `size` is 0, of all entries that the longest prompt needs."""
    return Workspace.of(size, chunk) if size else Workspace(longest, longest)


def step(chunk: int) -> int:
    """Return the tokens of which sizes are multiples: whole chunks, and whole blocks of the store and of windows."""
    return lcm(chunk, BLOCK)
