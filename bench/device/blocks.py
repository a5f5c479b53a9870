"""blocks: the part of the device benchmark that measures experts, and slots in each encoding with each reading."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, get_args

import torch

from bench.device.made import Write, make_random, seconds_of
from bench.device.scale import Scale
from ringkv.base.cache_spec import (
    IN_CHUNKS,
    CacheSpec,
    LayerGroup,
    PageFormat,
    PlaneFormat,
    Reading,
    SlotFormat,
)
from ringkv.base.kv import SINKS
from ringkv.base.zip_sizes import CHUNK
from ringkv.cache.allocate import allocate_slots
from ringkv.cache.body import Body
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.experts import ExpertStack, experts
from ringkv.kernels.slots import Rows

PAGE, FIRST, NEWEST = 32, 1, 1  # entries of a page; pages that are always read
READINGS: Mapping[str, Reading] = {
    "": "everything",
    ", unequal heads": "ragged",
    ", a quarter of pages": PageFormat(PAGE),
}
ROUTINGS = 4  # in turn, so that few rows do not find their experts in a cache


class Shapes(NamedTuple):
    """Experts of a layer and how many a token has; latents of a layer, and the slots that attend to them."""

    hidden: int
    intermediate: int
    count: int
    chosen: int
    rows: tuple[int, ...]
    heads: int
    entry: int
    rank: int
    slots: tuple[tuple[int, int], ...]  # slots, entries of each
    encoded: tuple[tuple[int, int], ...]  # the same, of the scale's model


LATENTS, ENCODED = ((64, 8192), (64, 32768)), ((64, 8192), (8, 131072))
PUBLISHED = Shapes(2048, 768, 128, 8, (1, 64, 2048), 128, 576, 512, LATENTS, ENCODED)
TINY = Shapes(64, 32, 4, 2, (1, 8), 4, 96, 64, ((2, 64),), ((2, 64),))
"""PUBLISHED: experts of Qwen3-30B-A3B, latents of DeepSeek-R1."""


@torch.inference_mode()
def blocks(scale: Scale, write: Write, _: str) -> None:
    """Measure each operator inside a CUDA graph, without its launch."""
    shapes = PUBLISHED if scale.torch_device.type == "cuda" else TINY
    for measure in (_experts, _slots):
        for figure in measure(scale, shapes):
            write("block", **figure)


def _experts(scale: Scale, of: Shapes) -> Iterator[dict[str, object]]:
    gate_up = _random(scale, of.count * 2 * of.intermediate, of.hidden)
    down = _random(scale, of.count * of.hidden, of.intermediate)
    for rows in of.rows:
        x, weights = _random(scale, rows, of.hidden), torch.full((rows, of.chosen), 1 / of.chosen, device=scale.device)
        routings = [torch.rand(rows, of.count, device=scale.device).topk(of.chosen).indices for _ in range(ROUTINGS)]
        read = sum(len(chosen.unique()) for chosen in routings) / ROUTINGS * (gate_up.nbytes + down.nbytes) / of.count

        def run(
            x: torch.Tensor = x, weights: torch.Tensor = weights, routings: Sequence[torch.Tensor] = routings
        ) -> None:
            for chosen in routings:
                experts(x, chosen, weights, ExpertStack(gate_up, down, of.count), x)

        taken = seconds_of(_captured(run, scale), scale.torch_device, repeats=8) / ROUTINGS
        operations = 6.0 * rows * of.chosen * of.hidden * of.intermediate
        yield {"part": "experts", "slots": rows, "s": taken, "rate": read / taken, "operations": operations}


def _slots(scale: Scale, of: Shapes) -> Iterator[dict[str, object]]:
    """Measure one layer's step with full slots, in each encoding with each reading; a rate counts what a step reads."""
    model = scale.config
    groups = model.num_heads // model.num_kv_heads
    latents = LayerGroup((0,), CacheSpec.latent(of.rank, of.entry - of.rank), of.heads)
    heads = LayerGroup((0,), CacheSpec.grouped(model.num_kv_heads, model.head_dim), groups)
    for encoding in get_args(PlaneFormat):
        for name, reading in READINGS.items():
            if encoding != IN_CHUNKS or reading == "everything":
                for slots, entries in of.encoded:
                    group = heads._replace(slots=SlotFormat(encoding, reading))
                    yield {"part": f"{encoding} slots{name}", **_step(scale, group, slots, entries)}
        if encoding != IN_CHUNKS:
            for slots, entries in of.slots:
                group = latents._replace(slots=SlotFormat(encoding))
                yield {"part": f"{encoding} latents", **_step(scale, group, slots, entries)}


def _step(scale: Scale, group: LayerGroup, slots: int, entries: int) -> dict[str, object]:
    """Measure a step of one layer whose slots are full of random entries."""
    key, queries, zeros = group.spec.key, group.queries, _random(scale, 1).new_zeros
    body = allocate_slots(group.in_slots, slots, entries, zeros)
    for plane in body.planes:
        make_random(plane)
    share = _fill(body, entries)
    slot = torch.arange(slots, device=scale.device).int()
    live = torch.full_like(slot, entries)
    q, k = _random(scale, slots, key.heads, queries, key.width), _random(scale, slots, key.heads, key.width)
    v = k if group.spec.value else None
    run = partial(decode_attend, q, k, v, body.layer(0), Rows(slot, live - 1, live), key.width**-0.5)
    taken = seconds_of(_captured(run, scale), scale.torch_device, repeats=8)
    read = share * sum(plane.nbytes for plane in body.planes) + (body.pages.digests.nbytes if body.pages else 0)
    operations = 2.0 * share * slots * key.heads * queries * entries * (key.width + group.spec.value_width)
    return {"slots": slots, "live": entries, "s": taken, "rate": read / taken, "operations": operations}


def _fill(body: Body, entries: int) -> float:
    """Note in full slots what their reading needs, and return the share of the entries that a step reads.

    Ragged heads have from a quarter to seven quarters of the average. Of pages a step reads a quarter.
    """
    if body.group.slots.encoding == IN_CHUNKS:
        body.planes[-1][:] = torch.tensor([SINKS, 1, 0, max(0, entries - SINKS - 1) // CHUNK, 0])
    if body.places is not None:
        more = (torch.linspace(-0.75, 0.75, body.places.shape[2]) * entries).round().int()
        body.places[:] = torch.stack(((more + entries).cumsum(0) - (more + entries), more), -1)
    if body.pages is None:
        return 1.0
    count = max(entries // PAGE // 4, FIRST + NEWEST + 1)
    body.pages.counts[:] = torch.tensor([count, FIRST, NEWEST])
    body.pages.pins[:] = -torch.inf
    make_random(body.pages.digests)
    return min(1.0, count * PAGE / entries)


def _random(scale: Scale, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=scale.device, dtype=getattr(torch, scale.dtype)) / shape[-1] ** 0.5


def _captured(run: Callable[[], object], scale: Scale) -> Callable[[], object]:
    """Return a replay of what `run` launches; `run` itself on the CPU."""
    if scale.torch_device.type != "cuda":
        return run
    run()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
