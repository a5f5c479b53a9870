"""prefetch: while a layer of a decode step runs, the pages that the next layer will probably read are fetched.

The guess is the next layer's own queries of what enters this one (ArkVale, section 4). R rows of a step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from torch import Tensor

from ringkv.cache.body import Body
from ringkv.engine.load import ModelWeights
from ringkv.engine.passes import Fed
from ringkv.engine.programs import Programs, query_weights
from ringkv.models.decoder import Decoder
from ringkv.models.rotary import Rotation

Prefetch = Callable[[int, Tensor, Mapping[str, Rotation], Fed], None]
"""Takes the size of a step, what enters a layer, the angles by kind and the rows; fetches for the layer after it."""


def by_layer(
    decoder: Decoder, weights: ModelWeights, bodies: Sequence[Body], programs: Programs
) -> Sequence[Prefetch | None]:
    """Return what runs before each layer; None if nothing is prefetched for the layer after it."""
    return [*_each(decoder, weights, bodies, programs), None][1:]


def _each(
    decoder: Decoder, weights: ModelWeights, bodies: Sequence[Body], programs: Programs
) -> Iterator[Prefetch | None]:
    """Yield what fetches for each layer."""
    for kind, place, layer in zip(decoder.kinds, decoder.places, weights.layers, strict=True):
        graphs = {size: by_kind[kind] for size, by_kind in programs.prefetch.graphs.items() if kind in by_kind}
        last = [*bodies[place.group].layer(place.row), *query_weights(layer).values()]
        yield partial(_run, programs, kind, place.group, last) if graphs else None


def _run(
    programs: Programs,
    kind: str,
    group: int,
    last: list[Tensor],
    size: int,
    x: Tensor,
    rotations: Mapping[str, Rotation],
    fed: Fed,
) -> None:
    numbers = fed.at[group]
    programs.prefetch[size][kind]([x, *rotations[kind], numbers.slot, numbers.live, *last])
