"""PrefixShape: the bytes that a prefix must have, computed from its layouts alone."""

from dataclasses import dataclass

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.config import EngineConfig
from ringkv.base.kv import Layout, Layouts
from ringkv.handoff.messages import Prefix
from ringkv.models.config import load_config
from ringkv.plan.footprint import item_bytes
from ringkv.wire.link import InvalidMessage

LOGIT = 4  # bytes


@dataclass(frozen=True)
class PrefixShape:
    """groups: in the format of slots. item: bytes of an element of the engine's dtype. capacity: entries of a slot."""

    groups: tuple[LayerGroup, ...]
    item: int
    vocab: int
    capacity: int

    @classmethod
    def of(cls, config: EngineConfig) -> "PrefixShape":
        model = load_config(config.model_dir).with_slots(config.slot_format)
        groups = tuple(group.in_slots for group in model.groups)
        return cls(groups, item_bytes(config.dtype), model.vocab_size, config.capacity)

    @property
    def logits(self) -> int:
        """Bytes of the last logits."""
        return LOGIT * self.vocab

    @property
    def largest(self) -> int:
        """Bytes of a prefix that fills its slot."""
        return sum(group.slot_bytes(self.capacity, self.item) for group in self.groups) + self.logits

    def entries(self, layouts: Layouts, seen: int) -> int:
        """Return the bytes of the live entries: of each group its live entries, and its centers if it has any."""
        return sum(
            layout.live(seen) * group.token_bytes(self.item) + len(group.layers) * group.spec.center_bytes
            for group, layout in zip(self.groups, layouts, strict=True)
        )

    def check(self, prefix: Prefix, prompt: int) -> None:
        """Raise InvalidMessage unless a header fits a slot and a prompt of so many tokens, and has the right sizes."""
        if len(prefix.layouts) != len(self.groups) or prefix.seen != prompt or prefix.cached not in range(prompt + 1):
            raise InvalidMessage(f"a prefix of {prefix.seen} tokens in {len(prefix.layouts)} groups")
        for group, layout in zip(self.groups, prefix.layouts, strict=True):
            if not _is_valid(layout, prompt, group.entries(self.capacity)):
                raise InvalidMessage(f"an invalid {layout}")
        if any(token not in range(self.vocab) or count < 1 for token, count in prefix.sampled.items()):
            raise InvalidMessage("counts of tokens that do not exist")
        size, due = (prefix.entries, prefix.logits), (self.entries(prefix.layouts, prefix.seen), self.logits)
        if size != due:
            raise InvalidMessage("{:,} + {:,} bytes; the formula gives {:,} + {:,}".format(*size, *due))


def _is_valid(layout: Layout, prompt: int, entries: int) -> bool:
    """Whether every entry that the layout names, for any position from the prompt's end on, lies in the slot."""
    counts = layout.sinks, layout.selected, layout.recent, layout.protected, layout.base
    return (
        layout.prompt == prompt
        and all(0 <= count <= prompt + entries for count in counts)
        and 1 <= layout.ring
        and layout.protected + layout.ring <= entries
        and 0 <= layout.protected + prompt - layout.base
    )
