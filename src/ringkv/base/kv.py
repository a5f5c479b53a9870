"""KVChoice, what a user asks of the cache; Layout, what one request's slot then looks like.

Letters: n tokens a slot has seen (positions count from 0, so the next token's position is n); S sinks; R recent;
K selected; C = S + R + K entries a request may hold.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from ringkv.base.checks import Rule, check, is_count, number, one_of
from ringkv.base.selectors import SELECTORS, Selector, SnapKV

POLICIES = ("full", "streaming", "snapkv", "snapstream")
TurnMode = Literal["reread", "continue"]
TURN_MODES: tuple[TurnMode, ...] = get_args(TurnMode)
BLOCK = 64  # entries that are remembered together, in a prefix store
TokenSpan = tuple[int, int]  # of prompt tokens: the first, and the one after the last


@dataclass(frozen=True)
class KVChoice:
    """Which tokens one request's cache keeps.

    policy: one of `POLICIES`.
    budget: entries the request may hold (per layer and key-value head); None is the slot's whole capacity.
    sinks: S, leading tokens never evicted. recent: R, a share of the budget when below 1, else a number of entries.
    elastic: give short prompts' unused entries to the ring; False is the paper's fixed layout.
    protect: spans of prompt tokens that are never evicted, neither at prefill nor while decoding.
    turns: what a conversation's next turn begins with: "reread" chooses anew from all its tokens; "continue" goes on
    from the entries that the last turn left, if the engine still has them.
    select: how the selected tokens are chosen; one of `base.selectors`, with its parameters.
    Raises `InvalidRequest` that names the setting at fault.
    """

    policy: str = "snapstream"
    budget: int | None = None
    sinks: int = 4
    recent: float = 0.25
    elastic: bool = True
    protect: tuple[TokenSpan, ...] = ()
    turns: TurnMode = "reread"
    select: Selector = SnapKV()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        selectors = ", ".join(f"{kind.__name__}()" for kind in SELECTORS.values())
        check(
            (
                one_of("kv_policy", self.policy, POLICIES),
                number("kv_budget", 1 if self.budget is None else self.budget, 1),
                number("kv_sinks", self.sinks, 0),
                ("kv_recent", self.recent, _is_part(self.recent), "a share such as 0.25 (below 1) or whole entries"),
                ("kv_elastic", self.elastic, isinstance(self.elastic, bool), "true or false"),
                *map(_span_rule, self.protect),
                one_of("kv_turns", self.turns, TURN_MODES),
                ("kv_select", self.select, type(self.select) in SELECTORS.values(), f"one of {selectors}"),
            )
        )

    @property
    def window(self) -> int:
        """W, trailing prompt tokens that the policy snapkv keeps whole; an engine keeps as many queries."""
        return self.select.window

    def recent_entries(self, budget: int) -> int:
        """R as a number of entries of `budget`."""
        return max(1, int(self.recent * budget)) if self.recent < 1 else int(self.recent)


def _is_part(recent: object) -> bool:
    """Whether it is a share, or a number of entries."""
    return isinstance(recent, int | float) and (0 < recent < 1 or (recent >= 1 and recent % 1 == 0))


def _span_rule(span: Any) -> Rule:
    is_span = len(span) == 2 and is_count(span[0], 0) and is_count(span[1], span[0] + 1)
    return "kv_protect", span, is_span, "spans of a first token and the one after the last, as (0, 120) is"


def protect_system_message(choice: KVChoice, tokens: int, capacity: int) -> KVChoice:
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

    sinks: leading prompt tokens that are kept, all of them if the whole prompt is. selected: how many of the candidates
    `sinks .. n - recent` are kept. recent: trailing prompt tokens that are kept. Entries stand in this order; recent
    tokens beyond `protected` stand in ring order. base: the position that takes the ring's first entry; positions
    before it stand below `protected`, in order. wraps: False stops the request when its ring is full.
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

    def wrap_count(self, n: int) -> int:
        """How often generated tokens, up to n seen, have taken the ring's first entry again."""

        def starts(seen: int) -> int:
            return max(0, (seen - 1 - self.base) // self.ring)

        return starts(n) - starts(self.prompt)

    def by_age(self, n: int) -> list[int]:
        """Live entries once the slot has seen n >= prompt tokens: those outside the ring, then its, oldest first."""
        live = self.live(n)
        first = n - max(0, live - self.protected)
        return [*range(min(live, self.protected)), *map(self.entry, range(first, n))]

    def shifted(self, gap: int) -> "Layout":
        """The same entries where `gap` more tokens were seen before, of which none is held."""
        return self._replace(prompt=self.prompt + gap, base=self.base + gap)

    @property
    def free_entries(self) -> int | None:
        """Tokens that still fit after the prompt; None when the ring wraps and there is no end."""
        return None if self.wraps else self.capacity - self.live(self.prompt)


Layouts = tuple[Layout, ...]
"""One a group of layers. The first is the one that a policy compresses, unless every layer has a sliding window."""
