"""Programs: every graph an engine replays, made once.

B slots, V vocabulary. Each kind of layer has graphs for passes with pieces of prompts, and for decode steps. They are
replayed for every layer of the kind; weights and caches are arguments. The head and the samplers have graphs too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.sampling import SamplerTier
from ringkv.cache.body import Body
from ringkv.engine import functions
from ringkv.engine.load import ModelWeights
from ringkv.engine.sampling.graphs import draft_samplers, is_compiled, samplers
from ringkv.engine.sizes import SMALL, EngineSizes, Family, Sizes
from ringkv.engine.staging import Staging
from ringkv.graphs.graph import Backend, Eager, Graph, StaticFunction
from ringkv.kernels.constants import WIDTH_STEP
from ringkv.kernels.prefill_attend import Segment, unit_of
from ringkv.kernels.sampling.tiers import DRAFT_TIERS
from ringkv.kernels.slots import flat, form
from ringkv.models.base import Place
from ringkv.models.decoder import Decoder

PASS_EXAMPLE, STEP_EXAMPLE = 256, 8  # rows that a graph for any number is traced with: loops are parallel by these

ByKind = Mapping[str, Graph]


@dataclass(frozen=True)
class Programs:
    """rides: slots may decode in a pass with pieces of prompts; its graphs then take the slots' planes too.

    unit: a prompt may be cut at multiples of this.
    """

    backend: Backend
    rides: bool
    unit: int
    drafted: int  # tokens that a step may have beside a slot's sampled one
    passes: Family[ByKind]  # by rows
    decode: Family[ByKind]  # by slots
    drafts: Family[ByKind]  # the same for steps with drafts
    head: Family[Graph]  # by rows
    head_of_one: Graph  # a prompt's last token alone, if the head has fixed sizes; eager, as it runs once a request
    sampling: Mapping[SamplerTier, Graph]
    sampling_drafts: Mapping[SamplerTier, Graph]  # for all drafts of all slots; only the tiers that drafts may have

    @property
    def packs(self) -> bool:
        """Whether a pass may have pieces of several prompts: rows must not depend on their neighbours."""
        return self.passes.sizes.is_any

    @property
    def repeated(self) -> int:
        """Tokens of a piece of a prompt that is prefilled a second time."""
        return SMALL if self.packs else min(self.passes.sizes.fixed)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cover tokens start .. stop-1 with (start, size) pieces: the largest size of which more than half is needed.

        One piece covers all if any size is possible.
        """
        if self.packs:
            yield start, stop - start
            return
        while start < stop:
            size = max((size for size in self.passes.sizes.fixed if size < 2 * (stop - start)), default=self.repeated)
            yield start, size
            start += size

    def pieces_of(self, tokens: int, chunk: int) -> Iterator[tuple[int, int]]:
        """Cover a text with pieces, chunk by chunk."""
        for start in range(0, tokens, chunk):
            yield from self.pieces(start, min(start + chunk, tokens))

    def rows(self, running: int) -> int:
        """Return the rows of the smallest step for so many running slots."""
        rows = self.decode.sizes.fit(running)
        assert rows is not None
        return rows

    def rows_with_drafts(self, running: int) -> int | None:
        """Return the rows of the smallest step with drafts; None if there is no such step."""
        return self.drafts.sizes.fit(running)


Args = tuple[StaticFunction, list[Tensor]]
"""A function and its example arguments."""


def make(
    backend: Backend,
    decoder: Decoder,
    weights: ModelWeights,
    staging: Staging,
    bodies: Sequence[Body],
    chunk: int,
    drafts: int = 0,
) -> Programs:
    """Build all graphs. The example arguments are the real weights and caches, which are neither run nor copied."""
    ranks, device, vocab = decoder.config.slot_share.count, staging.queries[0].device, decoder.config.vocab_size
    slots, kinds = bodies[0].rows * ranks, tuple(decoder.layers)
    sizes = EngineSizes.of(chunk, device, slots, weights, drafts, ranks)
    examples = _Examples(decoder, weights, staging, bodies, sizes.rides and fits_kernels(decoder))

    def graph(name: str, of: Sizes, function: StaticFunction, example: list[Tensor]) -> Graph:
        return backend.make(name, function.for_any_rows() if of.is_any else function, example)

    def layers(name: str, of: Sizes, example: int, args: Callable[[str, int], Args], tag: str = "") -> Family[ByKind]:
        def by_kind(rows: int) -> ByKind:
            size = f"{'' if of.is_any else rows}{tag}"
            return {kind: graph("-".join(filter(None, (name, kind, size))), of, *args(kind, rows)) for kind in kinds}

        return Family(of, {rows: by_kind(rows) for rows in of.to_make(example)})

    def head(rows: int) -> Graph:
        return graph("head" if sizes.head.is_any else f"head-{rows}", sizes.head, *examples.head(rows))

    tokens, drafting = 1 + drafts, not sizes.drafts.none
    return Programs(
        backend=backend,
        rides=examples.rides,
        unit=_unit(decoder, device),
        drafted=drafts if drafting else 0,
        passes=layers("mixed" if examples.rides else "prefill", sizes.passes, PASS_EXAMPLE, examples.of_pass),
        decode=layers("decode", sizes.decode, STEP_EXAMPLE, examples.decode),
        drafts=layers("decode", sizes.drafts, STEP_EXAMPLE, partial(examples.decode, tokens=tokens), f"x{tokens}"),
        head=Family(sizes.head, {rows: head(rows) for rows in sizes.head.to_make(STEP_EXAMPLE)}),
        head_of_one=Eager().make("head-1", *examples.head(1)),
        sampling=samplers(backend, slots, vocab, device),
        sampling_drafts=draft_samplers(backend, slots * drafts, vocab, device) if drafting else {},
    )


def fits_kernels(decoder: Decoder) -> bool:
    """Whether the C++ operators attend for all heads; the references would compute for rows without a slot too."""
    return all(layer.attention.cache.key.width % WIDTH_STEP == 0 for layer in decoder.layers.values())


def _unit(decoder: Decoder, device: torch.device) -> int:
    """Return the tokens between two places where a prompt may be cut: the most of any kind of layer."""
    layers = decoder.layers.values()
    widths = ((layer.attention.cache.key.width, layer.window or 0) for layer in layers)
    return max(unit_of(width, decoder.dtype, device, window) for width, window in widths)


class _Examples:
    """The functions of an engine's graphs, with the arguments that they are made for."""

    def __init__(
        self, decoder: Decoder, weights: ModelWeights, staging: Staging, bodies: Sequence[Body], rides: bool
    ) -> None:
        self._decoder, self._weights, self._staging, self._bodies = decoder, weights, staging, bodies
        self.rides, self._device = rides, staging.queries[0].device
        self._first = {kind: _First.of(kind, decoder, weights) for kind in decoder.layers}

    def of_pass(self, kind: str, rows: int) -> Args:
        """A layer of a pass with pieces of prompts, and with slots if they may ride."""
        (group, row, reader), layer = self._first[kind]
        staged = self._staging.layer(group, row, reader)
        segments = self._staging.tables(group, [Segment(0, rows, 0, 0, 0, 0)])[row]
        example = [*self._rows(kind, rows), segments, *staged]
        names = tuple(layer)
        if not self.rides:
            return functions.prefill_layer(self._decoder, kind, names), [*example, *layer.values()]
        slots = self._bodies[group].layer(row)
        function = functions.mixed_layer(self._decoder, kind, names, form(slots))
        return function, [*example, *self._numbers(rows), *flat(slots), *layer.values()]

    def decode(self, kind: str, slots: int, tokens: int = 1) -> Args:
        """A layer of a decode step with so many tokens for each slot."""
        (group, row, _), layer = self._first[kind]
        numbers = self._numbers(slots) if tokens == 1 else self._numbers(slots, tokens)
        stored = self._bodies[group].layer(row)
        example = [*self._rows(kind, slots * tokens), *numbers, *flat(stored), *layer.values()]
        return functions.decode_layer(self._decoder, kind, tuple(layer), form(stored), tokens), example

    def head(self, rows: int) -> Args:
        """The final norm and the vocabulary projection."""
        shared, hidden = self._weights.shared, self._tokens(rows, self._decoder.config.stream)
        return functions.head(self._decoder, tuple(shared)), [hidden, *shared.values()]

    def _numbers(self, rows: int, *tokens: int) -> list[Tensor]:
        """Slot int32 [rows]; entry and live int32 [rows, tokens]."""
        shapes = (rows,), (rows, *tokens), (rows, *tokens)
        return [torch.zeros(shape, dtype=torch.int32, device=self._device) for shape in shapes]

    def _rows(self, kind: str, rows: int) -> list[Tensor]:
        positions = torch.zeros(rows, dtype=torch.int64, device=self._device)
        return [self._tokens(rows, self._decoder.argument_width), *self._decoder.rotation(kind, positions)]

    def _tokens(self, rows: int, elements: int) -> Tensor:
        return torch.zeros(rows, elements, dtype=self._decoder.dtype, device=self._device)


class _First(NamedTuple):
    """The first layer of a kind. Its weights and caches are the example arguments of the kind's graphs."""

    place: Place
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, kind: str, decoder: Decoder, weights: ModelWeights) -> "_First":
        index = decoder.kinds.index(kind)
        return cls(decoder.places[index], weights.layers[index])


def count(sizes: EngineSizes, kinds: int, device: torch.device) -> int:
    """Return how many graphs `make` builds for a model with so many kinds of layers."""
    layers = kinds * sum(len(family.to_make(1)) for family in (sizes.passes, sizes.decode, sizes.drafts))
    sampling = len(SamplerTier) + (0 if sizes.drafts.none else len(DRAFT_TIERS)) if is_compiled(device) else 0
    return layers + sampling + len(sizes.head.to_make(1))
