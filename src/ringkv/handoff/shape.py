"""PrefixShape: the bytes that a prefix must have, and the numbers in it that steps use as indices and as counts."""

from dataclasses import dataclass

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.config import EngineConfig
from ringkv.base.kv import Layout, Layouts
from ringkv.base.page_counts import EVERYTHING, PageCounts, most_read
from ringkv.base.zip_sizes import COUNTS, counts_of
from ringkv.handoff.messages import Prefix
from ringkv.models.config import load_config
from ringkv.ranks.packets import PacketParts
from ringkv.wire.link import InvalidMessage

LOGIT = 4  # bytes


@dataclass(frozen=True)
class PrefixShape:
    parts: PacketParts
    vocab: int

    @classmethod
    def of(cls, config: EngineConfig) -> "PrefixShape":
        return cls(PacketParts.of(config), load_config(config.model_dir).vocab_size)

    @property
    def logits(self) -> int:
        """Bytes of the last logits."""
        return LOGIT * self.vocab

    @property
    def largest(self) -> int:
        """Bytes of a prefix that fills its slot."""
        full = [group.entries(self.parts.capacity) for group in self.parts.groups]
        return sum(part.bytes for _, part in self.parts.each(full)) + self.logits

    def entries(self, layouts: Layouts, seen: int) -> int:
        """Return the bytes of everything that slots with these layouts have."""
        return sum(part.bytes for _, part in self.parts.each([layout.live(seen) for layout in layouts]))

    def check(self, prefix: Prefix, prompt: int) -> None:
        """Raise InvalidMessage unless a header fits a slot and a prompt of so many tokens, and has the right sizes."""
        groups = self.parts.groups
        if len(prefix.layouts) != len(groups) or prefix.seen != prompt or prefix.cached not in range(prompt + 1):
            raise InvalidMessage(f"a prefix of {prefix.seen} tokens in {len(prefix.layouts)} groups")
        for group, layout in zip(groups, prefix.layouts, strict=True):
            if not _is_valid(layout, prompt, group, group.entries(self.parts.capacity)):
                raise InvalidMessage(f"an invalid {layout}")
        if any(token not in range(self.vocab) or count < 1 for token, count in prefix.sampled.items()):
            raise InvalidMessage("counts of tokens that do not exist")
        size, due = (prefix.entries, prefix.logits), (self.entries(prefix.layouts, prefix.seen), self.logits)
        if size != due:
            raise InvalidMessage("{:,} + {:,} bytes; the formula gives {:,} + {:,}".format(*size, *due))

    def check_numbers(self, prefix: Prefix, entries: memoryview) -> None:
        """Raise InvalidMessage unless steps may use the numbers in a prefix as indices and as counts."""
        first = 0
        for index, part in self.parts.each([layout.live(prefix.seen) for layout in prefix.layouts]):
            group, layout = self.parts.groups[index], prefix.layouts[index]
            raw = entries[first : first + part.bytes]
            first += part.bytes
            if not _are_valid(part.name, raw, group, layout, group.entries(self.parts.capacity)):
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


def _are_valid(name: str, raw: memoryview, group: LayerGroup, layout: Layout, entries: int) -> bool:
    """Whether the numbers in a tensor with the name of a `base.cache_spec.SlotPart` are valid; True for other tensors.

    A prefix is that of a slot that was filled and has decoded nothing, so nearly all of them follow from its layout.
    layout: it is valid, and that of the group. entries: of the group's slots.
    """
    import numpy as np

    live = layout.live(layout.prompt)
    match name:
        case "places":  # `cache.body.Body.take` makes them: heads follow each other and all find room
            first, more = np.frombuffer(raw, np.int32).reshape(-1, 2).astype(np.int64).T
            room = more + entries
            follow = np.array_equal(first, room.cumsum() - room)
            return follow and bool((more >= -min(layout.protected, live)).all()) and not more.sum()
        case "counts of pages":
            assert group.slots.pages is not None
            of_pages = PageCounts.of(layout, group.slots.pages.size) or EVERYTHING
            return bool((np.frombuffer(raw, np.int32).reshape(-1, len(of_pages)) == of_pages).all())
        case "pins":
            return bool(np.isinf(np.frombuffer(raw, np.float32)).all())
        case "positions":
            positions = np.frombuffer(raw, np.int32)
            return bool(((positions >= 0) & (positions < layout.prompt)).all())
        case "history":  # no review has counted anything
            return not np.frombuffer(raw, np.uint8).any()
        case "counts of chunks":
            of_chunks = counts_of(live, min(layout.fixed, live))
            return bool((np.frombuffer(raw, np.int32).reshape(-1, COUNTS) == of_chunks).all())
    return True
