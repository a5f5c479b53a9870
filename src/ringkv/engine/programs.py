"""Programs: every graph an engine replays, made once.

B slots, V vocabulary. Each kind of layer has graphs for passes with pieces of prompts, and for decode steps. They are
replayed for every layer of the kind; weights and caches are arguments. The head and the samplers have graphs too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.base.sampling import SamplerTier
from ringkv.cache.body import Body
from ringkv.engine import functions
from ringkv.engine.load import ModelWeights
from ringkv.engine.sampling.graphs import draft_samplers, is_compiled, samplers
from ringkv.engine.sizes import SMALL, BySize, EngineSizes, Sizes
from ringkv.engine.staging import Staging
from ringkv.graphs.graph import Backend, Eager, Graph, StaticFunction
from ringkv.kernels.constants import WIDTH_STEP
from ringkv.kernels.prefill_attend import Segment, unit_of
from ringkv.kernels.sampling.tiers import DRAFT_SAMPLERS
from ringkv.kernels.slots import flat, form
from ringkv.models.base import CachePlace
from ringkv.models.decoder import Decoder

PASS_EXAMPLE, STEP_EXAMPLE = 256, 8  # rows that a graph for any number is traced with: loops are parallel by these

ByKind = Mapping[str, Graph]


@dataclass(frozen=True)
class Programs:
    """The graphs, with the decoder and the weights that they run.

    rides: slots may decode in a pass with pieces of prompts; its graphs then take the slots' planes too. unit: a prompt
    may be cut at multiples of this. drafted: tokens that a step may have beside a slot's sampled one.
    """

    decoder: Decoder
    weights: ModelWeights
    backend: Backend
    rides: bool
    unit: int
    drafted: int
    passes: BySize[ByKind]  # by rows
    decode: BySize[ByKind]  # by slots
    drafts: BySize[ByKind]  # the same for steps with drafts
    head: BySize[Graph]  # by rows
    head_of_one: Graph  # a prompt's last token alone, if the head has fixed sizes; eager, as it runs once a request
    sampling: Mapping[SamplerTier, Graph]
    sampling_drafts: Mapping[SamplerTier, Graph]  # for all drafts of all slots; only the tiers that drafts may have

    def run(self, graphs: ByKind, tokens: Tensor, positions: Tensor, arguments: Iterable[Sequence[Tensor]]) -> Tensor:
        """Run one layer after the other on tokens and positions int64 [N], and return hidden states [N, stream].

        arguments: of each layer that runs, those between its angles and its weights.
        """
        embedded, rotations = self.decoder.embed(tokens, self.weights.shared), self.decoder.rotations(positions)
        x = embedded.x
        layers = zip(self.decoder.kinds, self.weights.layers, arguments, strict=False)
        for layer, (kind, weights, cached) in enumerate(layers):
            (x,) = graphs[kind]([embedded.layer_argument(layer, x), *rotations[kind], *cached, *weights.values()])
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return float32 logits [N, V] of hidden states [N, stream]."""
        return self.head[len(x)]([x, *self.weights.shared.values()])[0]

    def logits_of_one(self, x: Tensor) -> Tensor:
        """Return float32 logits [1, V] of a prompt's last hidden state [1, stream]."""
        return self.head_of_one([x, *self.weights.shared.values()])[0]

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


Args = tuple[StaticFunction, list[Tensor]]
"""A function and its example arguments."""


def make(
    backend: Backend,
    decoder: Decoder,
    weights: ModelWeights,
    staging: Staging,
    bodies: Sequence[Body],
    config: EngineConfig,
) -> Programs:
    """Build all graphs. The example arguments are the real weights and caches, which are neither run nor copied."""
    device, vocab, kinds = staging.device, decoder.config.vocab_size, tuple(decoder.layers)
    sizes = EngineSizes.of(config, weights)
    widths = [(layer.attention.cache.key.width, layer.window or 0) for layer in decoder.layers.values()]
    # The C++ operators attend for heads of these widths; the references would compute for rows without a slot too.
    rides = sizes.rides and all(width % WIDTH_STEP == 0 for width, _ in widths)

    def hidden(rows: int, elements: int) -> Tensor:
        return torch.zeros(rows, elements, dtype=decoder.dtype, device=device)

    def first_layer(kind: str, rows: int) -> tuple[CachePlace, dict[str, Tensor], list[Tensor]]:
        """Return the first layer of a kind: its place, its weights, and the first arguments of its graphs."""
        layer, positions = decoder.kinds.index(kind), torch.zeros(rows, dtype=torch.int64, device=device)
        first = [hidden(rows, decoder.argument_width), *decoder.rotation(kind, positions)]
        return decoder.places[layer], weights.layers[layer], first

    def numbers(rows: int, *tokens: int) -> list[Tensor]:
        """Return slot int32 [rows]; entry and live int32 [rows, tokens]."""
        shapes = (rows,), (rows, *tokens), (rows, *tokens)
        return [torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes]

    def of_pass(kind: str, rows: int) -> Args:
        (group, row, reader), named, example = first_layer(kind, rows)
        segments = staging.tables(group, [Segment(0, rows, 0, 0, 0, 0)])[row]
        example += [segments, *staging.layer(group, row, reader)]
        slots = bodies[group].layer(row) if rides else None
        example += [*numbers(rows), *flat(slots)] if slots else []
        function = functions.pass_layer(decoder, kind, tuple(named), form(slots) if slots else None)
        return function, [*example, *named.values()]

    def decode(kind: str, slots: int, tokens: int = 1) -> Args:
        """Return a layer of a decode step with so many tokens for each slot."""
        (group, row, _), named, example = first_layer(kind, slots * tokens)
        stored = bodies[group].layer(row)
        example += [*(numbers(slots) if tokens == 1 else numbers(slots, tokens)), *flat(stored), *named.values()]
        return functions.decode_layer(decoder, kind, tuple(named), form(stored), tokens), example

    def head(rows: int) -> Args:
        shared = weights.shared
        return functions.head(decoder, tuple(shared)), [hidden(rows, decoder.config.stream), *shared.values()]

    def graph(of: Sizes, rows: int, name: str, args: Args, tag: str = "") -> Graph:
        function, example = args
        size = f"{'' if of.is_any else rows}{tag}"
        return backend.make(
            f"{name}-{size}" if size else name, function.for_any_rows() if of.is_any else function, example
        )

    def layers(name: str, of: Sizes, example: int, args: Callable[[str, int], Args], tag: str = "") -> BySize[ByKind]:
        def by_kind(rows: int) -> ByKind:
            return {kind: graph(of, rows, f"{name}-{kind}", args(kind, rows), tag) for kind in kinds}

        return BySize.of(of, example, by_kind)

    drafts = 0 if sizes.drafts.none else config.speculate
    with_drafts = partial(decode, tokens=1 + drafts)
    return Programs(
        decoder=decoder,
        weights=weights,
        backend=backend,
        rides=rides,
        unit=max(unit_of(width, decoder.dtype, device, window) for width, window in widths),
        drafted=drafts,
        passes=layers("mixed" if rides else "prefill", sizes.passes, PASS_EXAMPLE, of_pass),
        decode=layers("decode", sizes.decode, STEP_EXAMPLE, decode),
        drafts=layers("decode", sizes.drafts, STEP_EXAMPLE, with_drafts, f"x{1 + drafts}"),
        head=BySize.of(sizes.head, STEP_EXAMPLE, lambda rows: graph(sizes.head, rows, "head", head(rows))),
        head_of_one=Eager().make("head-1", *head(1)),
        sampling=samplers(backend, config.slots, vocab, device),
        sampling_drafts=draft_samplers(backend, config.slots * drafts, vocab, device) if drafts else {},
    )


def count(sizes: EngineSizes, kinds: int, device: torch.device) -> int:
    """Return how many graphs `make` builds for a model with so many kinds of layers."""
    layers = kinds * sum(len(family.to_make(1)) for family in (sizes.passes, sizes.decode, sizes.drafts))
    sampling = len(SamplerTier) + (0 if sizes.drafts.none else len(DRAFT_SAMPLERS)) if is_compiled(device) else 0
    return layers + sampling + len(sizes.head.to_make(1))
