"""KVChoice: which tokens a request's cache keeps. Layout: how its slot is then laid out.

Letters: n tokens a slot has seen (positions count from 0, so the next token's position is n); S sinks; R recent;
K selected; C = S + R + K entries a request may hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from ringkv.base.checks import Rule, check, is_count, number, one_of
from ringkv.base.selectors import SELECTORS, Selector, SnapKV, is_selector

_SELECTOR = f"one of {', '.join(SELECTORS)}, or a hashable ringkv.Selector with a name and votes(prompt, low, high)"
UNVOTED = ("full", "streaming", "arkvale")
"""Policies whose slots keep the same tokens with any selector."""
KEEP_EVERY_TOKEN = ("full", "arkvale")  # policies
POLICIES = ("full", "streaming", "snapkv", "snapstream", "arkvale", "scissorhands")
MOST_REVIEWED = 255  # tokens of a review; their low or high weights are counted in 8 bits
TurnMode = Literal["reread", "continue"]
TURN_MODES: tuple[TurnMode, ...] = get_args(TurnMode)
PAGES = (32, 16)  # entries of a page; the first is the default
HeadBudgets = Literal["equal", "global", "profile"]
HEAD_BUDGETS: tuple[HeadBudgets, ...] = get_args(HeadBudgets)
BLOCK = 64  # entries per block of the prefix store
SINKS = 4
"""First tokens of a slot that every encoded format keeps exactly, for any S: most of the attention goes to them."""
NEWEST_WITH_RECALL = 64  # entries that arkvale reads as the newest ones, if they are a share of its budget
TokenSpan = tuple[int, int]  # prompt tokens: the first, and the one after the last


@dataclass(frozen=True)
class KVChoice:
    """Which tokens one request's cache keeps.

    policy: one of `POLICIES`.
    budget: entries the request may hold (per layer and key-value head), or with arkvale entries that a step reads; None
    is the slot's whole capacity.
    sinks: S, leading tokens never evicted. recent: R, a share of the budget when below 1, else a number of entries.
    elastic: give short prompts' unused entries to the ring; False is the paper's fixed layout.
    protect: spans of prompt tokens that are never evicted, neither at prefill nor while decoding.
    turns: how a conversation's next turn begins: "reread" selects again from all its tokens; "continue" uses the
    entries that the last turn left, if the engine still has them.
    select: the selector, one of `base.selectors` with its parameters, or the name of one such as "keydiff". An `LLM`
    also takes a selector from outside, see `base.selectors`.
    heads: what heads divide. "equal": each selects as many tokens. "global": those of all layers select what has the
    most votes (KVzip, arXiv 2505.23416). "profile": each selects what was measured once for the model (as
    DuoAttention's heads, arXiv 2410.10819).
    review: with scissorhands, N, tokens between two reviews of a slot, which then loses N entries.
    Raises `InvalidRequest`, which names the setting at fault.
    """

    policy: str = "snapstream"
    budget: int | None = None
    sinks: int = 4
    recent: float = 0.25
    elastic: bool = True
    protect: tuple[TokenSpan, ...] = ()
    turns: TurnMode = "reread"
    select: Selector = SnapKV()  # noqa: RUF009 - frozen
    heads: HeadBudgets = "equal"
    review: int = 32

    def __post_init__(self) -> None:
        if isinstance(self.select, str) and self.select in SELECTORS:
            object.__setattr__(self, "select", SELECTORS[self.select]())
        check(
            (
                one_of("kv_policy", self.policy, POLICIES),
                number("kv_budget", 1 if self.budget is None else self.budget, 1),
                number("kv_sinks", self.sinks, 0),
                ("kv_recent", self.recent, _is_part(self.recent), "a share such as 0.25 (below 1) or whole entries"),
                ("kv_elastic", self.elastic, isinstance(self.elastic, bool), "true or false"),
                *map(_span_rule, self.protect),
                one_of("kv_turns", self.turns, TURN_MODES),
                one_of("kv_heads", self.heads, HEAD_BUDGETS),
                ("kv_review", self.review, _is_reviewed(self.review), f"whole tokens, 1 to {MOST_REVIEWED}"),
                ("kv_select", self.select, is_selector(self.select), _SELECTOR),
            )
        )

    @property
    def window(self) -> int:
        """W, trailing prompt tokens that the policy snapkv always keeps. An engine stores the queries of as many."""
        return self.select.window

    @property
    def reads_pages(self) -> bool:
        """Whether slots hold every token, of which a step reads some pages."""
        return self.policy == "arkvale"

    @property
    def review_interval(self) -> int:
        """N, generated tokens between two reviews of a slot; 0 if the policy reviews no slots."""
        return self.review if self.policy == "scissorhands" else 0

    @property
    def keeps_votes(self) -> bool:
        """Whether a later turn needs the votes of entries: their selector cannot vote again once tokens are evicted."""
        return self.turns == "continue" and self.select.prefills_twice and self.policy not in UNVOTED

    def recent_entries(self, budget: int) -> int:
        """Return R as a number of entries, for this budget.

        With arkvale a share is at most `NEWEST_WITH_RECALL` entries: the others find what a query needs.
        """
        if self.recent >= 1:
            return int(self.recent)
        most = NEWEST_WITH_RECALL if self.policy == "arkvale" else budget
        return min(max(1, int(self.recent * budget)), most)


def _is_part(recent: object) -> bool:
    """Whether recent is a share of the budget or a number of entries."""
    return isinstance(recent, int | float) and (0 < recent < 1 or (recent >= 1 and recent % 1 == 0))


def _is_reviewed(tokens: object) -> bool:
    return isinstance(tokens, int) and 1 <= tokens <= MOST_REVIEWED


def _span_rule(span: Any) -> Rule:
    is_span = isinstance(span, Sequence) and len(span) == 2 and is_count(span[0], 0) and is_count(span[1], span[0] + 1)
    return "kv_protect", span, is_span, "spans of a first token and the one after the last, such as ((0, 120),)"


def protect_system_message(choice: KVChoice, tokens: int, capacity: int) -> KVChoice:
    """Return the choice with a chat's system message protected, which is the prompt's first `tokens`.

    The choice is unchanged if the message would take more than half of the selected entries, or if it protects spans.
    """
    budget = capacity if choice.budget is None else min(choice.budget, capacity)
    selected = budget - choice.review_interval - choice.recent_entries(budget) - max(choice.sinks, choice.window)
    if choice.protect or not 0 < 2 * tokens <= selected:
        return choice
    return replace(choice, protect=((0, tokens),))


class Layout(NamedTuple):
    """One request's slot, as integers: a protected prefix, then a ring. The same for every layer and head.

    If heads divide a slot, `selected`, `protected` and `capacity` are averages over heads. read: entries that a
    step reads, in whole pages; 0 is all. Of these the first `leading` and last `newest` are always read.
    fewest, most: entries of the heads with the fewest and the most, once they divide the slot; 0 if all have as many.
    review: N, tokens between two reviews if the policy has any, else 0. A review of a full slot moves what it
    keeps to the first entries, so that the last N are free again. layers: L, those that a review scores, in so many
    steps, T; the last of these is when the slot is due.

        entry(p) = protected + (p - base) % ring     for a token p that goes to the ring

    sinks: leading prompt tokens that are kept; the whole prompt if nothing is evicted. selected: how many of the
    candidates `sinks .. n - recent` are kept. recent: trailing prompt tokens that are kept. Entries are in this order,
    except that recent tokens beyond `protected` are in ring order. base: the position of the ring's first entry;
    earlier positions are below `protected`, in order. wraps: if False, the request ends when its ring is full.
    Source: SnapStream (arXiv 2511.03092), Figure 4; our elastic extension is in docs/policies.md.
    """

    prompt: int
    sinks: int
    selected: int
    recent: int
    protected: int
    base: int
    ring: int
    wraps: bool
    read: int = 0
    leading: int = 0
    newest: int = 0
    review: int = 0
    layers: int = 1
    steps: int = 1
    fewest: int = 0
    most: int = 0

    @property
    def capacity(self) -> int:
        """Entries the request may hold."""
        return self.protected + self.ring

    @property
    def again(self) -> int:
        """Entries that are filled again and again once the slot is full."""
        return self.review or self.ring

    @property
    def fixed(self) -> int:
        """Entries from the first on that no token overwrites."""
        return self.protected if self.wraps else self.capacity

    def live(self, n: int) -> int:
        """Return how many entries hold a token after n >= prompt tokens were seen; they are 0 .. live-1."""
        beyond = n - self.base - self.ring
        if self.review and beyond > 0:
            return self.capacity - self.review + (beyond - 1) % self.review + 1
        return min(self.protected + n - self.base, self.capacity)

    def entry(self, position: int) -> int:
        """Return the entry of the token generated at `position` (>= prompt)."""
        beyond = position - self.base
        if beyond < self.ring:
            return self.protected + beyond
        return self.capacity - self.again + (beyond - self.ring) % self.again

    def evicted(self, n: int) -> int:
        """Return how many of n seen tokens are no longer in the cache."""
        return n - self.live(n)

    def wrap_count(self, n: int) -> int:
        """Return how often generated tokens, up to n seen, have returned to the ring's first entry."""

        def starts(seen: int) -> int:
            return max(0, (seen - 1 - self.base - self.ring + self.again) // self.again)

        return starts(n) - starts(self.prompt)

    def by_age(self, n: int) -> list[int]:
        """Return the live entries after n >= prompt tokens: those before the ring, then the ring's, oldest first."""
        live = self.live(n)
        first = n - max(0, live - self.protected)
        return [*range(min(live, self.protected)), *map(self.entry, range(first, n))]

    def until_due(self, n: int) -> int:
        """Return how many tokens a slot with reviews takes, after n were seen, before it is due."""
        return (self.prompt + self.ring - n) % self.review

    def until_scored(self, n: int) -> int:
        """Return how many tokens a slot with reviews takes, after n > prompt were seen, before some layer is scored."""
        return max(0, self.until_due(n) - self.steps + 1)

    def is_due(self, n: int) -> bool:
        """Return whether a review ends before the slot takes another token, after n were seen."""
        return self.review > 0 and n > self.prompt and self.until_due(n) == 0

    def is_full(self, n: int) -> bool:
        """Return whether the slot takes no other token without a review, once n were seen."""
        return self.live(n) == self.capacity

    def scored(self, n: int) -> range:
        """Return the layers that a review scores before the slot takes another token, after n were seen.

        Layer l has its turn every N tokens, (L - 1 - l) T / L of them, rounded down, before the slot is due.
        """
        if not self.review or n <= self.prompt:
            return range(0)
        ahead = self.until_due(n)
        first, stop = ((self.steps - one) * self.layers // self.steps for one in (ahead + 1, ahead))
        return range(max(0, first), max(0, stop))

    def unscored(self, n: int) -> int:
        """Return how many of n seen tokens came since the last turn of the layers that are scored now."""
        return min(self.review, n - self.prompt)

    def reviewed(self, n: int) -> "Layout":
        """Return the layout of a full slot after a review, once n tokens were seen."""
        return self._replace(prompt=n, base=n, protected=self.capacity - self.review, ring=self.review)

    def shifted(self, offset: int) -> "Layout":
        """Return this layout for a prompt after `offset` earlier tokens that are no longer in the cache."""
        return self._replace(prompt=self.prompt + offset, base=self.base + offset)

    @property
    def free_entries(self) -> int | None:
        """Tokens that still fit after the prompt; None if the ring wraps, because it never fills up."""
        return None if self.wraps else self.capacity - self.live(self.prompt)


Layouts = tuple[Layout, ...]
"""One layout per group of layers. A policy compresses the first, unless every layer has a sliding window."""
