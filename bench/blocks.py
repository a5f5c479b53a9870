"""blocks: experts and latent attention beside what the machine allows, with random weights in published shapes.

    python -m bench.blocks [--weights bf16 int8 int4]

experts: layers of Qwen3-30B-A3B (128 experts, 8 per token) in turn, more than caches hold. Decode with 1 and 8 rows is
compared with reading as many bytes of a bfloat16 weight as the routed experts have. Prefill with 512 rows is compared
with a dense product of as many rows.
latents: decode attention of one layer of DeepSeek-R1 (128 heads) over 8 slots of 8k entries, beside that product's
rate. expanded, absorbed: attention of a chunk of a prompt in both forms, over 8k and 32k entries with the 16 heads of
DeepSeek-V2-Lite, beside the time that the operations of the expanded form would take at that rate. Calls that are
compared take turns. Run it on an idle machine.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from math import ceil
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from bench.kernels import load_kernels
from bench.results import TABLE, keep, table
from ringkv.bench.probe import as_packed
from ringkv.kernels.absorb import absorb, project_values
from ringkv.kernels.expanded_attend import Expansion
from ringkv.kernels.experts import experts
from ringkv.kernels.formats import FORMATS
from ringkv.kernels.latent_attend import decode_attend_latent, prefill_attend_latent
from ringkv.kernels.latent_pass import prefill_attend_expanded
from ringkv.kernels.linear import linear
from ringkv.kernels.packing import PANEL_N
from ringkv.kernels.prefill_attend import Segment
from ringkv.kernels.prefill_attend import table as table_of

HIDDEN, BETWEEN, COUNT, CHOSEN = 2048, 768, 128, 8  # Qwen3-30B-A3B
HEADS, WIDTH, RANK = 128, 576, 512  # DeepSeek-R1
SLOTS, LIVE = 8, 8192
LITE_HEADS, NOPE, VALUE, WINDOW = 16, 128, 128, 64  # DeepSeek-V2-Lite, and last queries that a prompt keeps
CHUNKS, STAGED = (512, 1024), (8192, 32768)
PREFILL, DECODE = 512, (1, 8)
TURNS, CHUNK_TURNS, DECODE_TIMES, ROUTINGS = 31, 9, 10, 16
UNCACHED = 3 << 29  # bytes; of so many read in turn, caches hold hardly any

Timed = Callable[[], object]
Turn = Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", choices=tuple(FORMATS), default=list(FORMATS))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--to", type=Path, default=TABLE, metavar="FILE", help="table to append to")
    args = parser.parse_args()
    load_kernels()
    figures = [figure for form in args.weights for figure in of_experts(form, args.turns)]
    figures.append(of_latents(args.turns))
    figures += [figure for staged in STAGED for rows in CHUNKS for figure in of_chunk(rows, staged, CHUNK_TURNS)]
    keep("blocks", {"threads": torch.get_num_threads()}, figures, shown(figures), args.to)


def shown(figures: Sequence[Mapping[str, object]]) -> str:
    head = ("", "rows", "entries", "weights", "time", "of the call beside it")
    lines = [
        (
            *(f"{f.get(name, '')}" for name in ("part", "rows", "entries", "weights")),
            f"{1e3 * f['seconds']:.2f} ms",  # type: ignore[operator]
            f"{f['share']:.0%}",
        )
        for f in figures
    ]
    return table(head, lines)


def of_experts(form: str, turns: int) -> Iterator[dict[str, object]]:
    """Yield the figures of layers of experts in a format: decode beside its floor, prefill beside a dense product."""
    layers = _layers(form)
    each = sum(stack.nbytes for stack in layers[0]) / COUNT
    norm = torch.ones(HIDDEN).bfloat16()
    for rows in (*DECODE, PREFILL):
        x, weights = torch.randn(rows, HIDDEN).bfloat16(), torch.full((rows, CHOSEN), 1 / CHOSEN)
        routings = [_routing(rows) for _ in range(ROUTINGS)]
        turn = zip(cycle(routings), cycle(layers), strict=False)
        distinct = sum(len(routing.unique()) for routing in routings) / ROUTINGS

        def run(x: Tensor = x, weights: Tensor = weights, turn: Turn = turn) -> None:
            chosen, (gate_up, down) = next(turn)
            experts(x, chosen, weights, gate_up, down, COUNT, norm, 1e-6, x)

        beside = _read(distinct * each) if rows in DECODE else _dense()
        # Turns of a few rows are short, so a slow moment of the memory may cover many of them.
        seconds, other = in_turns((run, beside), DECODE_TIMES * turns if rows in DECODE else turns)
        operations = 6.0 * rows * CHOSEN * HIDDEN * BETWEEN
        share = other / seconds * (1.0 if rows in DECODE else operations / DENSE_OPERATIONS)
        yield {"part": "experts", "rows": rows, "weights": form, "seconds": seconds, "share": share}


def _layers(form: str) -> list[tuple[Tensor, Tensor]]:
    """Return gate_up and down of layers that have at least UNCACHED bytes together."""
    gate_up = _stack(FORMATS[form].pack_gated, 2 * BETWEEN, HIDDEN)
    down = _stack(FORMATS[form].pack, HIDDEN, BETWEEN)
    count = ceil(UNCACHED / (gate_up.nbytes + down.nbytes))
    return [(gate_up, down), *((gate_up.clone(), down.clone()) for _ in range(count - 1))]


def _read(amount: float) -> Timed:
    """Return a product of one row with `amount` bytes of a weight, different ones until UNCACHED bytes are read."""
    inner = 4096
    out = round(amount / (2 * inner * PANEL_N)) * PANEL_N
    row = torch.randn(1, inner).bfloat16()
    weights = cycle([as_packed(torch.ones(out, inner).bfloat16()) for _ in range(ceil(UNCACHED / amount))])
    return lambda: linear(row, next(weights))


def of_latents(turns: int) -> dict[str, object]:
    """Return the figure of decode attention over latents, beside the rate of a dense product."""
    latents = torch.randn(SLOTS, 1, LIVE, WIDTH).bfloat16()
    q, k = torch.randn(SLOTS, 1, HEADS, WIDTH).bfloat16(), torch.randn(SLOTS, 1, WIDTH).bfloat16()
    slot, live = torch.arange(SLOTS).int(), torch.full((SLOTS,), LIVE).int()
    seconds, beside = in_turns(
        (lambda: decode_attend_latent(q, k, latents, slot, live - 1, live, WIDTH**-0.5), _dense()), turns
    )
    operations = 2.0 * SLOTS * HEADS * LIVE * (WIDTH + RANK)
    share = operations / seconds / (DENSE_OPERATIONS / beside)
    return {"part": "latents", "rows": SLOTS, "weights": "", "seconds": seconds, "share": share}


def of_chunk(rows: int, staged: int, turns: int) -> Iterator[dict[str, object]]:
    """Yield the figures of a prompt's last chunk in both forms. Absorbing queries is timed: all, or the window's."""
    latents, k = torch.randn(1, staged, WIDTH).bfloat16(), torch.randn(rows, 1, WIDTH).bfloat16()
    q = torch.randn(rows, 1, LITE_HEADS, NOPE + WIDTH - RANK).bfloat16()
    window = torch.zeros(1, 1, LITE_HEADS, WINDOW, WIDTH).bfloat16()
    expansion = Expansion(_each_head(RANK, NOPE), _each_head(VALUE, RANK))
    segments, scale = table_of([Segment(0, rows, 0, 0, staged - rows, staged)]), q.shape[-1] ** -0.5

    def expanded() -> None:
        prefill_attend_expanded(q, k, latents, window, segments, scale, expansion)

    def absorbed() -> None:
        queries = absorb(q, k, expansion)
        project_values(prefill_attend_latent(queries, k, latents, window, segments, scale), expansion)

    *seconds, beside = in_turns((expanded, absorbed, _dense()), turns)
    pairs, up = rows * (staged - (rows - 1) / 2), NOPE + VALUE
    operations = 2.0 * LITE_HEADS * (pairs * (q.shape[-1] + VALUE) + staged * RANK * up + WINDOW * RANK * NOPE)
    for part, taken in zip(("expanded", "absorbed"), seconds, strict=True):
        share = operations / taken / (DENSE_OPERATIONS / beside)
        yield {"part": part, "rows": rows, "entries": staged, "weights": "bf16", "seconds": taken, "share": share}


def _each_head(out: int, inner: int) -> Tensor:
    each = ((torch.randn(out, inner) / inner**0.5).bfloat16() for _ in range(LITE_HEADS))
    return torch.cat([FORMATS["bf16"].pack(one) for one in each])


def in_turns(runs: Sequence[Timed], turns: int) -> list[float]:
    """Return the median seconds of each call; the calls take turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(turns + 1):
        for run, times in zip(runs, taken, strict=True):
            started = time.perf_counter()
            run()
            if turn:  # the first one warms up
                times.append(time.perf_counter() - started)
    return [median(times) for times in taken]


DENSE_OPERATIONS = 2.0 * PREFILL * HIDDEN * 2 * HIDDEN


def _dense() -> Timed:
    """Return a product of as many rows as a prefill has."""
    x, weight = torch.randn(PREFILL, HIDDEN).bfloat16(), torch.randn(2 * HIDDEN, HIDDEN).bfloat16()
    packed = FORMATS["bf16"].pack(weight)
    return lambda: linear(x, packed)


def _stack(pack: Callable[[Tensor], Tensor], out: int, inner: int) -> Tensor:
    return torch.cat([pack((torch.randn(out, inner) / inner**0.5).bfloat16()) for _ in range(COUNT)])


def _routing(rows: int) -> Tensor:
    """Return random top-k experts int64 [rows, CHOSEN], all equally likely."""
    return torch.stack([torch.randperm(COUNT)[:CHOSEN].sort().values for _ in range(rows)])


if __name__ == "__main__":
    main()
