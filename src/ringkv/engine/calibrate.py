"""calibrate: sums over a model's queries before rotation, for policies that know what queries to expect.

H key-value heads, G query heads each, N tokens of a piece, D elements of a head.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ringkv.base.progress import Progress, silent
from ringkv.engine.lanes import Lanes
from ringkv.models.decoder import Decoder
from ringkv.weights.query_statistics import LayerSums, QueryStatistics, partial_path, read, write

WHAT = "calibrating, in tokens"


def calibrate(
    lanes: Lanes, windows: Sequence[Sequence[int]], path: Path, source: str, tell: Progress = silent
) -> QueryStatistics:
    """Write the statistics of all queries of windows of tokens, all of one length, to a file, and return them.

    source: a key of the windows. After an interruption, a call with the same source goes on with the window that was
    interrupted. An earlier file is used until the new one is complete. The windows overwrite lane 0.
    """
    partial, size = partial_path(path), len(windows[0])
    found, total = read(partial), size * len(windows)
    if found is None or found.source != source:
        found = QueryStatistics(source)
    for window in windows[found.tokens // size :]:
        for tokens, sums in _sums(lanes, window):
            tell(found.tokens, total, WHAT)
            found = found.plus(tokens, sums)
        write(partial, found)
    tell(total, total, WHAT)
    partial.replace(path)
    return found


@torch.inference_mode()
def _sums(lanes: Lanes, window: Sequence[int]) -> Iterator[tuple[int, dict[int, LayerSums]]]:
    """Prefill a window, and yield the number of tokens of each piece and the sums of each layer."""
    decoder = lanes.decoder
    for positions, by_group in lanes.prompt_queries(window):
        at = torch.arange(positions.start, positions.stop, device=lanes.staging.device)
        each = zip(decoder.groups, by_group, strict=True)
        layers = {
            layer: _of_layer(decoder, layer, queries, at)
            for group, found in each
            if group.window is None
            for layer, queries in zip(group.layers, found, strict=True)
        }
        yield len(positions), layers


def _of_layer(decoder: Decoder, layer: int, queries: Tensor, positions: Tensor) -> LayerSums:
    """Return the sums over queries [H, G, N, D], which are rotated by positions [N]."""
    kind = decoder.kinds[layer]
    plain = decoder.rotate(kind, queries, -positions)
    return LayerSums(*(one.double().sum(2).cpu() for one in (plain, decoder.pair_lengths(kind, plain))))
