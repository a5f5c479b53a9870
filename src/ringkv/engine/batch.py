"""Batch: the slots that decode together.

B slots, R rows of one step, L layers of a group, C entries per slot, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ringkv.base.engine import Packet
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier
from ringkv.cache.body import Body
from ringkv.cache.rings import Rings
from ringkv.cache.rows import CacheRow
from ringkv.cache.watching.review import Leaving, review
from ringkv.engine.copy_to_all import copy_to_all
from ringkv.engine.drafts import Drafts
from ringkv.engine.load import ModelWeights
from ringkv.engine.passes import Fed, RowNumbers
from ringkv.engine.programs import Programs
from ringkv.engine.sampling.sampled import SampledStep
from ringkv.engine.sampling.state import SamplingState
from ringkv.engine.sizes import Sizes
from ringkv.engine.slot_share import SlotShare
from ringkv.graphs.capture import Capture
from ringkv.kernels.slots import flat
from ringkv.models.decoder import Decoder


class Batch:
    """All slots and the steps that run on them. Memory is allocated and steps are captured when it is built."""

    def __init__(
        self, decoder: Decoder, weights: ModelWeights, bodies: tuple[Body, ...], programs: Programs, capture: Capture
    ) -> None:
        """bodies: one per group of layers, with a row per slot of this rank."""
        self.decoder, self.weights, self.bodies, self._programs = decoder, weights, bodies, programs
        self._share, device, vocab = SlotShare(decoder.config.slot_share), bodies[0].device, decoder.config.vocab_size
        count = bodies[0].rows * self._share.ranks
        self._owners: list[Request | None] = [None] * count
        self._layouts: list[Layouts] = [()] * count
        self._rings = tuple(Rings.empty(count, device) for _ in bodies)
        self._sampling = SamplingState.neutral(count, vocab, device)
        self.logits = torch.zeros(count, vocab, device=device)
        self._tokens = torch.zeros(count, dtype=torch.int64, device=device)
        self._forced = torch.full_like(self._tokens, -1)
        self._scores: dict[SamplerTier, tuple[Tensor, ...]] = {}
        self._groups = [place.group for place in decoder.places]
        self.layers = [
            [*flat(bodies[place.group].layer(place.row)), *layer.values()]
            for layer, place in zip(weights.layers, decoder.places, strict=True)
        ]
        self._rows = torch.arange(count, device=device)  # the slots of a step, first
        self._run_forward = _steps(programs.decode.sizes, self._forward, capture)
        self._run_sampler = {tier: capture(partial(self._sample, tier)) for tier in SamplerTier}
        self._drafts = Drafts(programs.drafted, bodies, vocab, self._share)
        self._run_drafts = _steps(programs.drafts.sizes, self._forward_drafts, capture)
        self._run_draft_sampler = {
            tier: capture(partial(self._sample_drafts, tier)) for tier in programs.sampling_drafts
        }
        for slot in range(count):  # clears what warming up captured graphs wrote
            self.release(slot)

    @property
    def held_bytes(self) -> int:
        """Bytes of this rank's slots."""
        return sum(body.bytes for body in self.bodies)

    @property
    def slot_bytes(self) -> int:
        """Bytes that one slot sets aside, all layers."""
        return sum(body.row_bytes for body in self.bodies)

    @property
    def tier_bytes(self) -> int:
        """Bytes of one slot in files, or in the host's memory beside a GPU."""
        return sum((body.file_bytes + body.host_bytes) // body.rows for body in self.bodies)

    @property
    def sampler_bytes(self) -> int:
        """Bytes of the logits and the sampling state of all slots, with drafts."""
        return self.logits.nbytes + self._sampling.nbytes + self._drafts.nbytes

    @property
    def drafts(self) -> int:
        """Tokens that a step may have beside a slot's sampled one."""
        return self._drafts.most

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry, all layers."""
        return sum(body.entry_bytes for body in self.bodies)

    @property
    def builds(self) -> int:
        """Graphs compiled so far."""
        return self._programs.backend.builds

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def slot(self, slot: int) -> CacheRow | None:
        """Return the memory of a slot, without drafts; None if another rank has it."""
        self._drafts.drop(slot)
        own = self._share.place(slot)
        for body in self.bodies:
            body.settle()
        return None if own is None else CacheRow(self.bodies, own)

    def recalled(self, slot: int) -> int | None:
        """Return the pages that a slot's steps have recalled, per layer and head; None if no page needs to be recalled.

        Waits for the device.
        """
        counts = [body.recalled[:, slot] for body in self.bodies if body.recalled is not None]
        return round(float(torch.cat([one.flatten() for one in counts]).float().mean())) if counts else None

    def whole_slot(self, slot: int) -> CacheRow:
        """Return the memory of a slot on every rank: a copy, if ranks divide the slots."""
        own = self.slot(slot)
        if own is not None and self._share.ranks == 1:
            return own
        return copy_to_all(own, self.bodies, self.decoder.config.exchange)

    def owner(self, slot: int) -> tuple[Request, Layouts]:
        """Return the request in a slot, and the slot's layouts."""
        request = self._owners[slot]
        assert request is not None, "the slot is free"
        return request, self._layouts[slot]

    def place(self, slot: int, layouts: Layouts, logits: Tensor, request: Request) -> None:
        """Give a slot with filled entries to a request. logits: float32 [V] of the last token it has seen."""
        own = self._share.place(slot)
        for rings, body, layout in zip(self._rings, self.bodies, layouts, strict=True):
            rings.place(slot, layout)
            if own is not None:
                body.place(own, layout)
        self.logits[slot] = logits
        self._layouts[slot] = layouts
        self._sampling.enter(slot, request)
        self._owners[slot] = request

    def review(self, slot: int, seen: int, choice: KVChoice, leaving: Sequence[Leaving]) -> None:
        """Review a slot that has seen so many tokens, before it takes another one. leaving: one per group."""
        row = self._share.place(slot)
        assert row is not None, "one rank has all slots"
        for rings, body, layout, own in zip(self._rings, self.bodies, self._layouts[slot], leaving, strict=True):
            if layout.review:
                review(body, row, layout, seen, choice, own)
                if layout.is_full(seen):
                    rings.place(slot, layout.reviewed(seen))

    def export(self, slot: int) -> Packet:
        """Return everything that another engine needs to continue a request."""
        request, layouts = self.owner(slot)
        memory = self.whole_slot(slot)
        seen = int(self._rings[0].length[slot])
        sampled = self._sampling.sampled(slot)
        live = [layout.live(seen) for layout in layouts]
        logits = self.logits[slot].cpu().numpy().tobytes()
        return Packet(request, layouts, seen, sampled, memory.export(live), logits)

    def restore(self, slot: int, packet: Packet) -> None:
        """Continue a request that another batch exported. Raises ValueError if the packet has other shapes."""
        live, memory = [layout.live(packet.seen) for layout in packet.layouts], self.slot(slot)
        if memory is not None:
            memory.restore(live, packet.entries)
        logits = torch.frombuffer(bytearray(packet.logits), dtype=torch.float32)
        self.place(slot, packet.layouts, logits, packet.request)
        self._sampling.recount(slot, packet.sampled)
        for rings in self._rings:
            rings.length[slot] = packet.seen

    def sample(self, forced: Mapping[int, int], allowed: Mapping[int, bytes]) -> SampledStep:
        """Sample each slot's next token from its logits; the arguments are those of `base.engine.Engine.sample`."""
        self._forced.fill_(-1)
        for slot, token in forced.items():
            self._forced[slot] = token
        for slot, mask in allowed.items():
            self._sampling.allow(slot, mask)
        params = [owner.sampling if owner else None for owner in self._owners]
        tier = max((p.tier for p in params if p), default=SamplerTier.GREEDY)
        self._run_sampler[tier]()
        wanted = [p.logprobs if p else None for p in params]
        # Copies: a captured step may reuse the scores' memory, and the next step overwrites the tokens.
        tokens, scores = self._tokens.clone(), tuple(score.clone() for score in self._scores[tier])
        return SampledStep(tokens, wanted, scores, self._settle() if self._drafts.open else ())

    def forward(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """Feed the tokens sampled last; arguments as `base.engine.Engine.forward` takes them."""
        running = self._running()
        needed = self._share.needed(running)
        with_drafts = self._programs.rows_with_drafts(needed) if drafts else None
        size = with_drafts or self._programs.rows(needed)
        self._select(running, size)
        if with_drafts:
            self._drafts.propose(drafts, self._rows[:size].clone())
        (self._run_drafts if with_drafts else self._run_forward)(size)

    def fed(self) -> Fed:
        """Return the rows that feed the tokens sampled last in a pass with others. `finish` must follow."""
        running = self._running()
        size = self._share.needed(running)
        self._select(running, size)
        return self._feed(size)

    def finish(self, logits: Tensor) -> None:
        """End a pass that has run the rows of `fed`. logits: float32 [R, V] of these rows."""
        self._settle_step(self._rows[: len(logits)], logits)

    def _running(self) -> list[int]:
        return [slot for slot, owner in enumerate(self._owners) if owner]

    def _select(self, running: list[int], size: int) -> None:
        """Let a step have the running slots as its rows, and free ones after them. Steps of fixed sizes have all."""
        if not self._programs.decode.sizes.fixed:
            free = (slot for slot, owner in enumerate(self._owners) if not owner)
            self._rows[:size] = torch.tensor(self._share.in_turn([*running, *free], size), dtype=torch.int64)

    def _settle(self) -> tuple[Tensor, Tensor]:
        """Sample after all drafts, and keep those that were sampled: the tokens [B, N], and how many count [B]."""
        owners = (self._owners[slot] for slot in self._drafts.open)
        self._run_draft_sampler[max((owner.sampling.tier for owner in owners if owner), default=SamplerTier.GREEDY)]()
        sampled, kept = self._drafts.sampled.clone(), self._drafts.verify(self._tokens)
        runs = torch.cat((self._tokens[:, None], sampled), 1)
        self._tokens.copy_(runs.gather(1, kept[:, None])[:, 0])
        self._sampling.count(sampled.where(torch.arange(self._drafts.most, device=self.device) < kept[:, None], -1))
        for rings in self._rings:
            rings.advance(kept.int())
        return sampled, kept

    def release(self, slot: int) -> None:
        """Empty a slot: nothing of it is read any more."""
        self._drafts.drop(slot)
        for rings in self._rings:
            rings.release(slot)
        self._owners[slot], self._layouts[slot] = None, ()
        self._sampling.leave(slot)
        self.logits[slot].zero_()

    def _feed(self, size: int) -> Fed:
        rows = self._rows[:size]
        slot = self._share.places(rows)
        at = (RowNumbers(slot, one.next_entry()[rows], one.live_after_next()[rows]) for one in self._rings)
        return Fed(self._tokens[rows].clamp(min=0), self._rings[0].length[rows], tuple(at))

    def _settle_step(self, rows: Tensor, logits: Tensor) -> None:
        self.logits.index_copy_(0, rows, logits)
        for rings in self._rings:
            rings.advance()

    def _forward(self, size: int) -> None:
        """One decode step on static buffers: reads `_tokens`, leaves `logits`, counts the tokens as seen."""
        decode, fed = self._programs.decode[size], self._feed(size)
        rotations = self.decoder.rotations(fed.positions)
        embedded = self.decoder.embed(fed.tokens, self.weights.shared)
        x = embedded.x
        for at, (kind, group, layer) in enumerate(zip(self.decoder.kinds, self._groups, self.layers, strict=True)):
            (x,) = decode[kind]([embedded.layer_argument(at, x), *rotations[kind], *fed.at[group], *layer])
        self._settle_step(self._rows[:size], self._programs.head[size]([x, *self.weights.shared.values()])[0])

    def _forward_drafts(self, size: int) -> None:
        """Run one decode step with drafts. Only the sampled tokens are counted as seen."""
        rows, graphs = self._rows[:size], self._programs.drafts[size]
        slot, fed = self._share.places(rows), self._drafts.feed(rows, self._rings)
        tokens = torch.cat((self._tokens[rows, None], self._drafts.tokens[rows]), 1)
        positions = self._rings[0].length[rows, None] + torch.arange(tokens.shape[1], device=self.device)
        rotations = self.decoder.rotations(positions.flatten())
        embedded = self.decoder.embed(tokens.flatten().clamp(min=0), self.weights.shared)
        x = embedded.x
        for at, (kind, group, layer) in enumerate(zip(self.decoder.kinds, self._groups, self.layers, strict=True)):
            (x,) = graphs[kind]([embedded.layer_argument(at, x), *rotations[kind], slot, *fed[group], *layer])
        logits = self._programs.head[tokens.numel()]([x, *self.weights.shared.values()])[0].view(*tokens.shape, -1)
        self.logits.index_copy_(0, rows, logits[:, 0])
        self._drafts.logits.index_copy_(0, rows, logits[:, 1:])
        for rings in self._rings:
            rings.advance()

    def _sample_drafts(self, tier: SamplerTier) -> None:
        """Sample after each draft."""
        inputs = self._sampling.inputs(self.logits, self._forced, self._rings[0].length.long())
        (tokens,) = self._programs.sampling_drafts[tier](self._drafts.inputs(inputs))
        self._drafts.sampled.copy_(tokens.view_as(self._drafts.sampled))

    def _sample(self, tier: SamplerTier) -> None:
        """Fill `_tokens` from `logits` and count them, and the tier's scores if its graph gives any."""
        inputs = self._sampling.inputs(self.logits, self._forced, self._rings[0].length.long())
        tokens, *scores = self._programs.sampling[tier](list(inputs))
        self._tokens.copy_(tokens)
        self._sampling.count(self._tokens[:, None])
        self._scores[tier] = tuple(scores)


def _steps(sizes: Sizes, step: Callable[[int], None], capture: Capture) -> Callable[[int], None]:
    """Return a function that runs a step of a size. Steps of fixed sizes are captured."""
    captured = {size: capture(partial(step, size)) for size in sizes.fixed}

    def run(size: int) -> None:
        captured[size]() if captured else step(size)

    return run
