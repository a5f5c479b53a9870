"""CacheRow: one row of every group's body, such as a slot or a lane of the staging.

L layers of a group, H key-value heads, n entries.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.body import ALL, Body, Entries, Planes
from ringkv.cache.earlier import Earlier
from ringkv.cache.filling import Kept
from ringkv.cache.steps import Steps


class Span(NamedTuple):
    """Where a lane is in a body: its entry i is the body's entry i + shift. Entries below `low` are no longer there."""

    shift: int = 0
    low: int = 0


class CacheRow(NamedTuple):
    """One row of every group's body: a whole slot, or a lane of the staging."""

    bodies: tuple[Body, ...]
    row: int
    spans: tuple[Span, ...] = ()  # one per group; none: the row's own entries

    def read_group(self, group: int, entries: Entries) -> Planes:
        """Return these entries of one group."""
        shift, low = self._span(group)
        assert isinstance(entries, Tensor) or (entries.start or 0) >= low, "these entries are no longer in the row"
        if isinstance(entries, Tensor):
            return self.bodies[group].read(self.row, entries + shift)
        stop = None if entries.stop is None else entries.stop + shift
        assert stop is not None or not shift, "a lane ends before its body"
        return self.bodies[group].read(self.row, slice((entries.start or 0) + shift, stop))

    def write_group(self, group: int, first: int, planes: Planes, layers: slice = ALL) -> None:
        """Copy entries of these layers of a group, starting at entry `first`, except those below the group's span."""
        shift, low = self._span(group)
        below = max(0, low - first)
        there = tuple(plane[:, :, below:] for plane in planes)
        self.bodies[group].write(self.row, first + below + shift, there, layers)

    def fill(
        self,
        slot: "CacheRow",
        sources: Sequence[Tensor],
        fixed: Sequence[int],
        saliency: Sequence[Tensor | None],
        earlier: Sequence[Sequence[Earlier]],
    ) -> Steps[None]:
        """Fill the rows of a slot with these entries of each group int64 [L, H, n]; see `Kept`.

        It may pause after each layer.
        """
        each = zip(self.bodies, sources, fixed, saliency, strict=True)
        for group, (body, source, count, salient) in enumerate(each):
            shift = self._span(group).shift
            moved = torch.where(source < 0, source, source + shift) if shift else source
            before = [part.shifted(shift) for part in earlier[group]] if earlier else ()
            yield from slot.bodies[group].take(slot.row, Kept(body.planes, self.row, moved, count, salient, before))

    def note(self, tokens: Iterable[Tensor]) -> None:
        """Note which tokens the entries of a slot that was filled hold, int64 [L, H, n] of each group."""
        for body, of_body in zip(self.bodies, tokens, strict=True):
            body.note(self.row, of_body)

    def _span(self, group: int) -> Span:
        return self.spans[group] if self.spans else Span()

    def export(self, live: Sequence[int]) -> bytes:
        """Return the first `live` entries of each group as one packet, which `restore` accepts on any machine."""
        parts = (part for body, n in zip(self.bodies, live, strict=True) for part in body.parts(self.row, n))
        return b"".join(part.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes() for part in parts)

    def restore(self, live: Sequence[int], packet: bytes | memoryview) -> None:
        """Fill the first `live` entries of each group from a packet; the others become 0.

        Raises ValueError for a packet of another size.
        """
        targets = [part for body, n in zip(self.bodies, live, strict=True) for part in body.parts(self.row, n)]
        sizes = [target.numel() * target.element_size() for target in targets]
        if sum(sizes) != len(packet):
            raise ValueError(f"the packet has {len(packet):,} bytes; these entries take {sum(sizes):,}")
        writable = bytearray(packet) if memoryview(packet).readonly else packet  # torch views no other
        raw = torch.frombuffer(writable, dtype=torch.uint8) if len(packet) else torch.empty(0, dtype=torch.uint8)
        for body, n in zip(self.bodies, live, strict=True):
            body.clear(self.row, n)
        for target, part in zip(targets, raw.split(sizes), strict=True):
            target.copy_(part.view(target.dtype).view(target.shape))
