"""Batch: the slots that decode together.

B slots, R rows of one step, L layers of a group, C entries per slot, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from ringkv.base.engine import Packet
from ringkv.base.kv import Layouts
from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier
from ringkv.cache.body import Body
from ringkv.cache.rings import Rings
from ringkv.cache.rows import CacheRow
from ringkv.engine.passes import Fed
from ringkv.engine.programs import Programs
from ringkv.engine.sampling.state import SampledStep, SamplingState
from ringkv.engine.sizes import Sizes
from ringkv.engine.slot_share import SlotShare
from ringkv.graphs.capture import Capture
from ringkv.kernels.sampling.tiers import Inputs
from ringkv.kernels.slots import Rows, flat


class Batch:
    """All slots and the steps that run on them. Memory is allocated and steps are captured when it is built.

    Its tensors are static: a step changes them in place. rows int64 [B]: the slots of a step, first. tokens int64 [B]:
    those sampled last. logits float32 [B, V]: what the next tokens are sampled from. slots: the arguments of each
    layer's graph.
    """

    def __init__(self, programs: Programs, bodies: tuple[Body, ...], capture: Capture) -> None:
        """bodies: one per group of layers, with a row per slot of this rank."""
        self.programs, self.bodies = programs, bodies
        self.decoder, self.weights = programs.decoder, programs.weights
        config, self.device = self.decoder.config, bodies[0].device
        self.share = SlotShare(config.slot_share)
        count = bodies[0].rows * self.share.ranks
        self._owners: list[Request | None] = [None] * count
        self._layouts: list[Layouts] = [()] * count
        self.rings = tuple(Rings.empty(count, self.device) for _ in bodies)
        self.sampling = SamplingState.neutral(count, config.vocab_size, self.device)
        self.logits = torch.zeros(count, config.vocab_size, device=self.device)
        self.rows = torch.arange(count, device=self.device)
        self.tokens = torch.zeros(count, dtype=torch.int64, device=self.device)
        self._forced = torch.full_like(self.tokens, -1)
        self._scores: dict[SamplerTier, tuple[Tensor, ...]] = {}
        self.slots = [(place.group, flat(bodies[place.group].layer(place.row))) for place in self.decoder.places]
        self._run_forward = captured_steps(programs.decode.sizes, self._forward, capture)
        self._run_sampler = {tier: capture(partial(self._sample, tier)) for tier in SamplerTier}
        for slot in range(count):  # clears what warming up captured graphs wrote
            self.release(slot)

    def slot(self, slot: int) -> CacheRow | None:
        """Return the memory of a slot, or None if another rank has it."""
        row = self.share.place(slot)
        for body in self.bodies:
            body.settle()
        return None if row is None else CacheRow(self.bodies, row)

    def whole_slot(self, slot: int) -> CacheRow:
        """Return the memory of a slot on every rank: a copy, if ranks divide the slots."""
        return self.share.on_every_rank(self.slot(slot), self.bodies, self.decoder.config.exchange)

    def owner(self, slot: int) -> tuple[Request, Layouts]:
        """Return the request in a slot, and the slot's layouts."""
        request = self._owners[slot]
        assert request is not None, "the slot is free"
        return request, self._layouts[slot]

    def place(self, slot: int, layouts: Layouts, logits: Tensor, request: Request) -> None:
        """Give a slot with filled entries to a request. logits: float32 [V] of the last token it has seen."""
        row = self.share.place(slot)
        for rings, body, layout in zip(self.rings, self.bodies, layouts, strict=True):
            rings.place(slot, layout)
            if row is not None:
                body.place(row, layout)
        self.logits[slot] = logits
        self._layouts[slot] = layouts
        self.sampling.enter(slot, request)
        self._owners[slot] = request

    def release(self, slot: int) -> None:
        """Empty a slot: nothing of it is read any more."""
        for rings in self.rings:
            rings.release(slot)
        self._owners[slot], self._layouts[slot] = None, ()
        self.sampling.leave(slot)
        self.logits[slot].zero_()

    def export(self, slot: int) -> Packet:
        """Return everything that another engine needs to continue a request."""
        request, layouts = self.owner(slot)
        memory = self.whole_slot(slot)
        seen = int(self.rings[0].length[slot])
        entries = memory.export([layout.live(seen) for layout in layouts])
        logits = self.logits[slot].cpu().numpy().tobytes()
        return Packet(request, layouts, seen, self.sampling.sampled(slot), entries, logits)

    def restore(self, slot: int, packet: Packet) -> None:
        """Continue a request that another batch exported. Raises ValueError if the packet has other shapes."""
        if (memory := self.slot(slot)) is not None:
            memory.restore([layout.live(packet.seen) for layout in packet.layouts], packet.entries)
        logits = torch.frombuffer(bytearray(packet.logits), dtype=torch.float32)
        self.place(slot, packet.layouts, logits, packet.request)
        for token, count in packet.sampled.items():
            self.sampling.in_output[slot, token] = count
        for rings in self.rings:
            rings.length[slot] = packet.seen

    def sample(self, forced: Mapping[int, int], allowed: Mapping[int, bytes]) -> SampledStep:
        """Sample each slot's next token from its logits; the arguments are those of `base.engine.Engine.sample`."""
        self._forced.fill_(-1)
        for slot, token in forced.items():
            self._forced[slot] = token
        for slot, mask in allowed.items():
            self.sampling.allow(slot, mask)
        params = [owner.sampling if owner else None for owner in self._owners]
        tier = max((p.tier for p in params if p), default=SamplerTier.GREEDY)
        self._run_sampler[tier]()
        # Copies: a captured step may reuse the scores' memory, and the next step overwrites the tokens.
        scores = tuple(score.clone() for score in self._scores[tier])
        return SampledStep(self.tokens.clone(), [p.logprobs if p else None for p in params], scores)

    def forward(self) -> None:
        """Feed the tokens sampled last."""
        size = self.programs.decode.sizes.fit(self.needed)
        assert size is not None
        self.select(size)
        self._run_forward(size)

    def fed(self) -> Fed:
        """Return the rows that feed the tokens sampled last in a pass with others. `finish` must follow."""
        size = self.needed
        self.select(size)
        return self._feed(size)

    def finish(self, logits: Tensor) -> None:
        """End a pass that has run the rows of `fed`. logits: float32 [R, V] of these rows."""
        self.logits.index_copy_(0, self.rows[: len(logits)], logits)
        for rings in self.rings:
            rings.advance()

    @property
    def needed(self) -> int:
        """Rows of a step with all running slots, at least."""
        return self.share.needed([slot for slot, owner in enumerate(self._owners) if owner])

    def select(self, size: int) -> None:
        """Let a step have the running slots as its rows, and free ones after them. Steps of fixed sizes have all."""
        if not self.programs.decode.sizes.fixed:
            slots = sorted(range(len(self._owners)), key=lambda slot: self._owners[slot] is None)
            self.rows[:size] = torch.tensor(self.share.in_turn(slots, size), dtype=torch.int64)

    def sampler_inputs(self) -> Inputs:
        """Return the arguments of a graph that samples after the logits."""
        return self.sampling.inputs(self.logits, self._forced, self.rings[0].length.long())

    def _feed(self, size: int) -> Fed:
        rows = self.rows[:size]
        slots = self.share.places(rows)
        numbers = (Rows(slots, rings.next_entry()[rows], rings.live_after_next()[rows]) for rings in self.rings)
        return Fed(self.tokens[rows].clamp(min=0), self.rings[0].length[rows], tuple(numbers))

    def _forward(self, size: int) -> None:
        """One decode step on static buffers: reads `tokens`, leaves `logits`, counts the tokens as seen."""
        fed = self._feed(size)
        arguments = ((*fed.numbers[group], *slots) for group, slots in self.slots)
        x = self.programs.run(self.programs.decode[size], fed.tokens, fed.positions, arguments)
        self.finish(self.programs.logits(x))

    def _sample(self, tier: SamplerTier) -> None:
        """Fill `tokens` from `logits` and count them, and the tier's scores if its graph gives any."""
        tokens, *scores = self.programs.sampling[tier](list(self.sampler_inputs()))
        self.tokens.copy_(tokens)
        self.sampling.count(self.tokens[:, None])
        self._scores[tier] = tuple(scores)


def captured_steps(sizes: Sizes, step: Callable[[int], None], capture: Capture) -> Callable[[int], None]:
    """Return a function that runs a step of a size. Steps of fixed sizes are captured."""
    captured = {size: capture(partial(step, size)) for size in sizes.fixed}

    def run(size: int) -> None:
        captured[size]() if captured else step(size)

    return run
