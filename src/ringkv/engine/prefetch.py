"""prefetch: while a layer of a decode step runs, the pages that the next layer will probably read are fetched.

They are predicted: the next layer's query projection is applied to what enters this layer (ArkVale, section 4).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ringkv.cache.body import Body
from ringkv.cache.formats.registry import FORMATS
from ringkv.engine.fed import Fed
from ringkv.engine.load import ModelWeights
from ringkv.engine.programs import Programs
from ringkv.engine.side_stream import NoStream, SideStream
from ringkv.models.blocks import query_weights
from ringkv.models.decoder import Decoder
from ringkv.models.rotary import Rotation


class Prefetch:
    """Fetches the pages of layers whose queries `programs` has graphs for. layers: these, except the first layer."""

    def __init__(
        self, decoder: Decoder, weights: ModelWeights, bodies: Sequence[Body], programs: Programs, device: torch.device
    ) -> None:
        assert programs.queries is not None
        self._decoder, self._queries, self._bodies = decoder, programs.queries, bodies
        self._side = SideStream(device) if device.type == "cuda" else NoStream()
        self._planes = [bodies[place.group].layer(place.row) for place in decoder.places]
        by_kind = next(iter(self._queries.graphs.values()))
        self.layers = [layer for layer, kind in enumerate(decoder.kinds) if layer and kind in by_kind]
        self._weights = [list(query_weights(layer).values()) for layer in weights.layers]

    def before(self, layer: int, rows: int, x: Tensor, rotations: Mapping[str, Rotation], fed: Fed) -> None:
        """Begin to fetch the pages of the next layer, and wait for those of this one.

        x [rows, hidden] enters this layer. rotations: the angles of the rows, by kind.
        """
        self._fetch(layer + 1, rows, x, rotations, fed)
        self._side.join(layer)

    def _fetch(self, layer: int, rows: int, x: Tensor, rotations: Mapping[str, Rotation], fed: Fed) -> None:
        if layer not in self.layers:
            return
        kind, group = self._decoder.kinds[layer], self._decoder.places[layer].group
        (q,) = self._queries[rows][kind]([x, *rotations[kind], *self._weights[layer]])
        numbers, format = fed.at[group], FORMATS[self._bodies[group].group.kind]
        assert format.prefetch is not None
        scale = self._decoder.layers[kind].attention.cache.scale
        with self._side.fork(layer, q, numbers.slot, numbers.live):
            format.prefetch(q, *self._planes[layer], numbers.slot, numbers.live, scale)
