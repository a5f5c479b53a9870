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


class Span(NamedTuple):
    """Where a lane is in a body: its entry i is the body's entry i + shift. Entries below `low` are no longer there."""

    shift: int = 0
    low: int = 0


class CacheRow(NamedTuple):
    """One row of every group's body: a whole slot, or a lane of the staging, which has `size` entries."""

    bodies: tuple[Body, ...]
    at: int
    spans: tuple[Span, ...] = ()  # one per group; none: the row's own entries
    size: int | None = None  # None: all of the row

    @property
    def entries(self) -> int:
        """Entries per row, the fewest of all groups."""
        return min(body.entries for body in self.bodies) if self.size is None else self.size

    def read(self, entries: Entries) -> list[Planes]:
        """Return these entries of each group."""
        return [self.read_group(group, entries) for group in range(len(self.bodies))]

    def read_group(self, group: int, entries: Entries) -> Planes:
        """Return these entries of one group."""
        shift, low = self._span(group)
        assert isinstance(entries, Tensor) or (entries.start or 0) >= low, "these entries are no longer in the row"
        return self.bodies[group].read(self.at, _shifted(entries, shift))

    def write_group(self, group: int, first: int, planes: Planes, layers: slice = ALL) -> None:
        """Copy entries of these layers of a group, starting at entry `first`, except those below the group's span."""
        shift, low = self._span(group)
        below = max(0, low - first)
        own = tuple(plane[:, :, below:] for plane in planes)
        self.bodies[group].write(self.at, first + below + shift, own, layers)

    def fill(
        self,
        slot: "CacheRow",
        sources: Sequence[Tensor],
        fixed: Sequence[int],
        saliency: Sequence[Tensor | None],
        earlier: Sequence[Sequence[Earlier]] = (),
    ) -> None:
        """Fill the rows of a slot with these entries of each group int64 [L, H, n]; see `Kept`."""
        each = zip(self.bodies, sources, fixed, saliency, strict=True)
        for group, (body, source, count, salient) in enumerate(each):
            shift = self._span(group).shift
            moved = torch.where(source < 0, source, source + shift) if shift else source
            before = [part.shifted(shift) for part in earlier[group]] if earlier else ()
            slot.bodies[group].take(slot.at, Kept(body.planes, self.at, moved, count, salient, before))

    def note(self, tokens: Iterable[Tensor]) -> None:
        """Note which tokens the entries of a slot that was filled hold, int64 [L, H, n] of each group."""
        for body, own in zip(self.bodies, tokens, strict=True):
            body.note(self.at, own)

    def _span(self, group: int) -> Span:
        return self.spans[group] if self.spans else _WHOLE

    def export(self, live: Sequence[int]) -> bytes:
        """Return the first `live` entries of each group as one packet, which `restore` accepts on any machine."""
        parts = (part for body, n in zip(self.bodies, live, strict=True) for part in body.parts(self.at, n))
        return b"".join(part.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes() for part in parts)

    def restore(self, live: Sequence[int], packet: bytes | memoryview) -> None:
        """Fill the first `live` entries of each group from a packet; the others become 0.

        Raises ValueError for a packet of another size.
        """
        targets = [part for body, n in zip(self.bodies, live, strict=True) for part in body.parts(self.at, n)]
        sizes = [target.numel() * target.element_size() for target in targets]
        if sum(sizes) != len(packet):
            raise ValueError(f"the packet has {len(packet):,} bytes; these entries take {sum(sizes):,}")
        raw = _raw(packet)
        for target, part in zip(targets, raw.split(sizes), strict=True):
            target.copy_(part.view(target.dtype).view(target.shape))
        for body, n in zip(self.bodies, live, strict=True):
            body.clear(self.at, n)


_WHOLE = Span()


def _raw(packet: bytes | memoryview) -> Tensor:
    """Return uint8 [bytes]: a view of a packet that may be written to, else a copy."""
    if not len(packet):
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(packet) if memoryview(packet).readonly else packet, dtype=torch.uint8)


def _shifted(entries: Entries, first: int) -> Entries:
    if not first:
        return entries
    if isinstance(entries, Tensor):
        return entries + first
    assert entries.stop is not None
    return slice((entries.start or 0) + first, entries.stop + first)
