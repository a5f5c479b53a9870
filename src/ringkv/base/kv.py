"""KVChoice, what a user asks of the cache; Layout, what one request's slot then looks like.

Letters: n tokens a slot has seen (positions count from 0, so the next token's position is n); S sinks; R recent;
K selected; C = S + R + K entries a request may hold.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

POLICIES = ("full", "streaming", "snapkv", "snapstream")
SELECTORS = ("snapkv", "tova", "keydiff", "expected", "kvzip")
Turns = Literal["reread", "continue"]
TURNS: tuple[Turns, ...] = get_args(Turns)
BLOCK = 64  # entries that are remembered together, in a prefix store
Span = tuple[int, int]  # of prompt tokens: the first, and the one after the last


@dataclass(frozen=True)
class KVChoice:
    """Which tokens one request's cache keeps.

    policy: one of `POLICIES`.
    budget: entries the request may hold (per layer and key-value head); None is the slot's whole capacity.
    sinks: S, leading tokens never evicted. recent: R, a share of the budget when below 1, else a number of entries.
    window: W, trailing prompt queries that vote. kernel, pooling: a token counts as the best ("max") or the mean
    ("avg") of so many around it. 5 and "avg" are common; ours keep passages whole (docs/accuracy.md measures it).
    groups: of the query heads that share a key-value head, the "mean" of their votes or each token's "max".
    domain: softmax over the whole causal "row" (SnapKV) or over the "candidates" only (SnapStream's Eq. 3).
    select: who says what a selected token is worth, one of `SELECTORS`. window, kernel, pooling, groups and domain
    are snapkv's; "expected" looks at the window too.
    protect: spans of prompt tokens that are never evicted, while the answer is written neither.
    elastic: give short prompts' unused entries to the ring; False is the paper's fixed layout.
    turns: what a conversation's next turn begins with: "reread" chooses anew from all its tokens; "continue" goes on
    from the entries that the last turn left, where the engine still has them.
    """

    policy: str = "snapstream"
    budget: int | None = None
    sinks: int = 4
    recent: float = 0.25
    window: int = 32
    kernel: int = 31
    pooling: Literal["avg", "max"] = "max"
    groups: Literal["mean", "max"] = "mean"
    domain: Literal["row", "candidates"] = "row"
    select: str = "snapkv"
    elastic: bool = True
    protect: tuple[Span, ...] = ()
    turns: Turns = "reread"

    def recent_entries(self, budget: int) -> int:
        """R as a number of entries of `budget`."""
        return max(1, int(self.recent * budget)) if self.recent < 1 else int(self.recent)


def keeping_system(choice: KVChoice, tokens: int, capacity: int) -> KVChoice:
    """The choice that also protects a chat's system message, the prompt's first `tokens`.

    Left as it is where the message would take more than half of what is chosen, or something is protected already.
    """
    budget = capacity if choice.budget is None else choice.budget
    chosen = budget - choice.recent_entries(budget) - max(choice.sinks, choice.window)
    if choice.protect or not 0 < 2 * tokens <= chosen:
        return choice
    return replace(choice, protect=((0, tokens),))


class Layout(NamedTuple):
    """One request's slot, as integers: a protected prefix, then a ring. The same for every layer and head.

        entry(p) = protected + (p - base) % ring     for a token p that goes to the ring

    head: leading prompt tokens kept. picked: how many of the candidates `head .. n - tail` are kept, best first.
    tail: trailing prompt tokens kept. In entry order: head, picked, then the tail, of which the part beyond
    `protected` lies in ring order. base: the position that takes the ring's first entry; those before it lie
    below `protected`, in order. wraps: False stops the request when its ring is full.
    Source: SnapStream (arXiv 2511.03092), Figure 4; our elastic extension is in docs/policies.md.
    """

    prompt: int
    head: int
    picked: int
    tail: int
    protected: int
    base: int
    ring: int
    wraps: bool

    @property
    def capacity(self) -> int:
        """Entries the request may hold."""
        return self.protected + self.ring

    def live(self, n: int) -> int:
        """Entries that hold a token once the slot has seen n >= prompt tokens; they are 0 .. live-1."""
        return min(self.protected + n - self.base, self.capacity)

    def entry(self, position: int) -> int:
        """The entry that the token generated at `position` (>= prompt) takes."""
        beyond = position - self.base
        return self.protected + (beyond if beyond < 0 else beyond % self.ring)

    def evicted(self, n: int) -> int:
        """Tokens seen that are no longer held."""
        return n - self.live(n)

    def laps(self, n: int) -> int:
        """How often generated tokens, up to n seen, have taken the ring's first entry again."""

        def starts(seen: int) -> int:
            return max(0, (seen - 1 - self.base) // self.ring)

        return starts(n) - starts(self.prompt)

    def by_age(self, n: int) -> list[int]:
        """Live entries once the slot has seen n >= prompt tokens: those outside the ring, then its, oldest first."""
        live = self.live(n)
        first = n - max(0, live - self.protected)
        return [*range(min(live, self.protected)), *map(self.entry, range(first, n))]

    def moved(self, gap: int) -> "Layout":
        """The same entries where `gap` more tokens were seen before, of which none is held."""
        return self._replace(prompt=self.prompt + gap, base=self.base + gap)

    @property
    def room(self) -> int | None:
        """Tokens that still fit after the prompt; None when the ring wraps and there is no end."""
        return None if self.wraps else self.capacity - self.live(self.prompt)


Layouts = tuple[Layout, ...]
"""One a group of layers. The first is the one that a policy compresses, unless every layer has a sliding window."""
