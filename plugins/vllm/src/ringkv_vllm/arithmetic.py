"""arithmetic: which blocks a request has. The scheduler and the workers compute it separately, so no message is needed.

n tokens seen, P prompt tokens, b entries of a block. A request's row of blocks only grows:

    blocks of the prompt | blocks of what is kept

The last chunk of a prompt gets the second part. What is kept is copied there, and the prompt's blocks are freed. Blocks
of the prompt, which other requests may share, are never overwritten. A prompt whose entries no later token overwrites
stays where it is.
"""

from dataclasses import dataclass
from functools import cached_property

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.layouts import layout


@dataclass(frozen=True)
class Blocks:
    """The blocks of one request. choice: None keeps every token, as vLLM does."""

    choice: KVChoice | None
    prompt: int
    block: int

    @cached_property
    def plan(self) -> Layout | None:
        """How the kept entries are laid out."""
        if self.choice is None:
            return None
        assert self.choice.budget is not None
        return layout(self.choice, self.prompt, self.choice.budget)

    @property
    def is_copied(self) -> bool:
        """Whether the prompt leaves its blocks: some token of it is evicted, or will be overwritten."""
        return self.plan is not None and self.prompt > self.plan.protected

    @property
    def moved(self) -> int:
        """Blocks of the row before those with what is kept."""
        return -(-self.prompt // self.block) if self.is_copied else 0

    def row(self, tokens: int) -> int:
        """Return how many blocks the row has had once so many tokens have a slot, freed ones included."""
        if self.plan is None or tokens < self.prompt:
            return -(-tokens // self.block)
        return self.moved + -(-self.plan.live(tokens) // self.block)

    def evicted(self, tokens: int) -> int:
        """Return how many of so many tokens are no longer held."""
        return 0 if self.plan is None or tokens < self.prompt else tokens - self.plan.live(tokens)

    def saved(self, tokens: int) -> int:
        """Return how many blocks fewer the request holds than if it kept so many tokens."""
        freed = 0 if tokens < self.prompt else self.moved
        return max(0, -(-tokens // self.block) - (self.row(tokens) - freed))
