"""PrefixShape: the bytes that a prefix must have, computed from its layouts alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from ringkv.base.cache_spec import LayerGroup, SlotPart
from ringkv.base.config import EngineConfig
from ringkv.base.kv import Layout, Layouts
from ringkv.base.page_counts import most_read
from ringkv.handoff import numbers
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
        full = (group.parts(self.capacity, group.entries(self.capacity), self.item) for group in self.groups)
        return sum(part.bytes for parts in full for part in parts) + self.logits

    def entries(self, layouts: Layouts, seen: int) -> int:
        """Return the bytes of everything that slots with these layouts have."""
        return sum(part.bytes for _, _, part in self._parts(layouts, seen))

    def _parts(self, layouts: Layouts, seen: int) -> Iterator[tuple[LayerGroup, Layout, SlotPart]]:
        """Yield the tensors of slots with these layouts, in the order of their bytes."""
        for group, layout in zip(self.groups, layouts, strict=True):
            for part in group.parts(self.capacity, layout.live(seen), self.item):
                yield group, layout, part

    def check(self, prefix: Prefix, prompt: int) -> None:
        """Raise InvalidMessage unless a header fits a slot and a prompt of so many tokens, and has the right sizes."""
        if len(prefix.layouts) != len(self.groups) or prefix.seen != prompt or prefix.cached not in range(prompt + 1):
            raise InvalidMessage(f"a prefix of {prefix.seen} tokens in {len(prefix.layouts)} groups")
        for group, layout in zip(self.groups, prefix.layouts, strict=True):
            if not _is_valid(layout, prompt, group, group.entries(self.capacity)):
                raise InvalidMessage(f"an invalid {layout}")
        if any(token not in range(self.vocab) or count < 1 for token, count in prefix.sampled.items()):
            raise InvalidMessage("counts of tokens that do not exist")
        size, due = (prefix.entries, prefix.logits), (self.entries(prefix.layouts, prefix.seen), self.logits)
        if size != due:
            raise InvalidMessage("{:,} + {:,} bytes; the formula gives {:,} + {:,}".format(*size, *due))

    def check_numbers(self, prefix: Prefix, entries: memoryview) -> None:
        """Raise InvalidMessage unless steps may use the numbers in a prefix as indices and as counts."""
        first = 0
        for group, layout, part in self._parts(prefix.layouts, prefix.seen):
            raw = entries[first : first + part.bytes]
            first += part.bytes
            if not numbers.are_valid(part.name, raw, group, layout, group.entries(self.capacity)):
                raise InvalidMessage(f"invalid {part.name}")


def _is_valid(layout: Layout, prompt: int, group: LayerGroup, entries: int) -> bool:
    """Whether every entry that the layout names, for any position from the prompt's end on, lies in the slot.

    Nor do steps read more pages than they can, or review other layers than the group has.
    """
    counts = layout.sinks, layout.selected, layout.recent, layout.protected, layout.base
    pages, reads = group.slots.pages, (layout.read, layout.leading, layout.newest)
    return (
        layout.prompt == prompt
        and all(0 <= count <= prompt + entries for count in counts)
        and 1 <= layout.ring
        and layout.protected + layout.ring <= entries
        and 0 <= layout.protected + prompt - layout.base
        and all(0 <= count <= (entries if pages else 0) for count in reads)
        and not (pages and pages.resident and most_read(layout, pages.size) > pages.resident)
        and 0 <= layout.review <= min(layout.ring, group.slots.queries)
        and (not layout.review or layout.layers == len(group.layers))
        and 1 <= layout.steps <= max(1, min(layout.layers, layout.review))
    )
