"""blocks: the part of the device benchmark that measures experts, latents, and slots in formats and with budgets."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, get_args

import torch

from bench.device.clock import seconds_of
from bench.device.journal import DeviceJournal
from bench.device.made import make_random
from bench.device.scale import Scale
from ringkv.base.cache_spec import IN_CHUNKS, LATENT_FORMATS, CacheSpec, LayerGroup, PlaneFormat
from ringkv.base.kv import SINKS
from ringkv.base.zip_sizes import CHUNK
from ringkv.cache.formats.registry import FORMATS, storage
from ringkv.cache.slot_bodies import allocate_slots
from ringkv.kernels.decode_attend_heads import decode_attend_heads
from ringkv.kernels.decode_attend_pages import decode_attend_pages, digest
from ringkv.kernels.experts import experts

PAGE, FIRST, NEWEST = 32, 1, 1  # entries of a page; pages that are always read
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
def blocks(scale: Scale, journal: DeviceJournal, _: str) -> None:
    """Measure each operator inside a CUDA graph, without its launch."""
    shapes = PUBLISHED if scale.torch_device.type == "cuda" else TINY
    for measure in (_experts, _latents, _formats, _budgets):
        for figure in measure(scale, shapes):
            journal.add("block", **figure)


def _experts(scale: Scale, of: Shapes) -> Iterator[dict[str, object]]:
    gate_up = _random(scale, of.count * 2 * of.intermediate, of.hidden)
    down = _random(scale, of.count * of.hidden, of.intermediate)
    for rows in of.rows:
        x, weights = _random(scale, rows, of.hidden), torch.full((rows, of.chosen), 1 / of.chosen, device=scale.device)
        routings = [torch.rand(rows, of.count, device=scale.device).topk(of.chosen).indices for _ in range(ROUTINGS)]
        read = sum(len(one.unique()) for one in routings) / ROUTINGS * (gate_up.nbytes + down.nbytes) / of.count

        def run(
            x: torch.Tensor = x, weights: torch.Tensor = weights, routings: Sequence[torch.Tensor] = routings
        ) -> None:
            for chosen in routings:
                experts(x, chosen, weights, gate_up, down, of.count, None, 0.0, x)

        taken = seconds_of(_captured(run, scale), scale.torch_device, repeats=8) / ROUTINGS
        operations = 6.0 * rows * of.chosen * of.hidden * of.intermediate
        yield {"part": "experts", "slots": rows, "s": taken, "rate": read / taken, "operations": operations}


def _latents(scale: Scale, of: Shapes) -> Iterator[dict[str, object]]:
    """Measure attention over full slots of latents in each format; a rate counts what is stored."""
    zeros = torch.zeros(0, device=scale.device, dtype=getattr(torch, scale.dtype)).new_zeros
    for slots, entries in of.slots:
        q, k = _random(scale, slots, 1, of.heads, of.entry), _random(scale, slots, 1, of.entry)
        slot = torch.arange(slots, device=scale.device).int()
        live = torch.full_like(slot, entries)
        operations = 2.0 * slots * of.heads * entries * (of.entry + of.rank)
        for name in LATENT_FORMATS:
            spec = CacheSpec.latent(of.rank, of.entry - of.rank).stored_as(name)
            body = allocate_slots(LayerGroup((0,), spec, of.heads), slots, entries, zeros)
            for plane in body.planes:
                make_random(plane)
            run = partial(storage(spec.key).attend, q, k, *body.layer(0), slot, live - 1, live, of.entry**-0.5)
            taken = seconds_of(_captured(run, scale), scale.torch_device, repeats=8)
            figure = {"s": taken, "rate": sum(plane.nbytes for plane in body.planes) / taken, "operations": operations}
            part = "latents" if name == "plain" else f"{name} latents"
            yield {"part": part, "slots": slots, "live": entries, **figure}


def _formats(scale: Scale, of: Shapes) -> Iterator[dict[str, object]]:
    """Measure decode attention of one layer with full slots in each format; a rate counts what is stored."""
    model = scale.config
    heads, width, groups = model.num_kv_heads, model.head_dim, model.num_heads // model.num_kv_heads
    zeros = torch.zeros(0, device=scale.device, dtype=getattr(torch, scale.dtype)).new_zeros
    for slots, entries in of.encoded:
        q, k = _random(scale, slots, heads, groups, width), _random(scale, slots, heads, width)
        slot = torch.arange(slots, device=scale.device).int()
        live = torch.full_like(slot, entries)
        for name in get_args(PlaneFormat):
            group = LayerGroup((0,), CacheSpec.grouped(heads, width).stored_as(name), groups)
            body = allocate_slots(group, slots, entries, zeros)
            for plane in body.planes:
                make_random(plane)
            if name == IN_CHUNKS:
                body.beside[0][:] = torch.tensor([SINKS, 1, 0, max(0, entries - SINKS - 1) // CHUNK, 0])
            run = partial(FORMATS[name].attend, q, k, k, *body.layer(0), slot, live - 1, live, width**-0.5)
            taken = seconds_of(_captured(run, scale), scale.torch_device, repeats=8)
            stored = sum(plane.nbytes for plane in body.planes)
            figure = {"s": taken, "rate": stored / taken, "operations": 4.0 * slots * heads * groups * entries * width}
            yield {"part": f"{name} slots", "slots": slots, "live": entries, **figure}


def _budgets(scale: Scale, of: Shapes) -> Iterator[dict[str, object]]:
    """Measure one layer's step with full slots: heads of different lengths, and a quarter of the pages read."""
    for slots, entries in of.encoded:
        for part, step in (("unequal heads", _unequal_heads), ("a quarter of pages", _quarter_of_pages)):
            run, read, attended = step(scale, slots, entries)
            taken = seconds_of(_captured(run, scale), scale.torch_device, repeats=8)
            figure = {"s": taken, "rate": read / taken, "operations": 4.0 * attended * scale.config.head_dim}
            yield {"part": part, "slots": slots, "live": entries, **figure}


class _Step(NamedTuple):
    run: Callable[[], object]
    bytes: float  # that it reads
    attended: float  # entries, counted for each query


def _unequal_heads(scale: Scale, slots: int, entries: int) -> _Step:
    """Heads have from a quarter to seven quarters of the entries that they have on average."""
    model, slot = scale.config, torch.arange(slots, device=scale.device).int()
    heads, width, groups = model.num_kv_heads, model.head_dim, model.num_heads // model.num_kv_heads
    more = (torch.linspace(-0.75, 0.75, heads) * entries).round().int()
    first = (more + entries).cumsum(0) - (more + entries)
    places = torch.stack((first, more), -1).int().to(scale.device).expand(slots, -1, -1).contiguous()
    planes = [_random(scale, slots, 1, heads * entries, width) for _ in range(2)]
    q, k = _random(scale, slots, heads, groups, width), _random(scale, slots, heads, width)
    live = torch.full_like(slot, entries)
    run = partial(decode_attend_heads, q, k, k, *planes, places, slot, live - 1, live, width**-0.5)
    return _Step(run, sum(plane.nbytes for plane in planes), slots * heads * groups * entries)


def _quarter_of_pages(scale: Scale, slots: int, entries: int) -> _Step:
    """It reads all digests, and the entries of the selected pages."""
    model, slot = scale.config, torch.arange(slots, device=scale.device).int()
    heads, width, groups = model.num_kv_heads, model.head_dim, model.num_heads // model.num_kv_heads
    keys, values = (_random(scale, slots, heads, entries, width) for _ in range(2))
    digests = digest(keys.unflatten(2, (-1, PAGE)), True)
    pins = torch.full(digests.shape[:3], -torch.inf, device=scale.device)
    pages = max(entries // PAGE // 4, FIRST + NEWEST + 1)
    counts = torch.tensor([[pages, FIRST, NEWEST, 1, 0]] * slots, dtype=torch.int32, device=scale.device)
    q, k = _random(scale, slots, heads, groups, width), _random(scale, slots, heads, width)
    live, share = torch.full_like(slot, entries), min(1.0, pages * PAGE / entries)
    stored = keys, values, digests, pins, counts
    run = partial(decode_attend_pages, q, k, k, *stored, slot, live - 1, live, width**-0.5)
    read = share * (keys.nbytes + values.nbytes) + digests.nbytes + pins.nbytes
    return _Step(run, read, share * slots * heads * groups * entries)


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
