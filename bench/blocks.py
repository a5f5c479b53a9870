"""blocks: experts and latent attention beside what the machine allows, with random weights in published shapes.

    python -m bench.blocks [--weights bf16 int8 int4]

experts: one layer of Qwen3-30B-A3B (128 experts, 8 per token). Decode with 1 and 8 rows is compared with the time to
read the experts that the rows have chosen; prefill with 512 rows with a dense product of as many rows.
latents: decode attention of one layer of DeepSeek-R1 (128 heads) over 8 slots of 8k entries, beside that product's
rate. Parts and probes take turns. Run it on an idle machine.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from bench.results import TABLE, keep, table
from ringkv.bench.probe import Machine
from ringkv.kernels.experts import experts
from ringkv.kernels.formats import FORMATS
from ringkv.kernels.latent_attend import decode_attend_latent
from ringkv.kernels.linear import linear
from ringkv.kernels.native import load
from ringkv.machine.compiler import find_compiler
from ringkv.machine.paths import cache_dir

HIDDEN, BETWEEN, COUNT, CHOSEN = 2048, 768, 128, 8  # Qwen3-30B-A3B
HEADS, WIDTH, RANK = 128, 576, 512  # DeepSeek-R1
SLOTS, LIVE = 8, 8192
PREFILL, DECODE = 512, (1, 8)
TURNS, DRAWS = 9, 8

Timed = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", choices=tuple(FORMATS), default=list(FORMATS))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--to", type=Path, default=TABLE, metavar="FILE", help="table to append to")
    args = parser.parse_args()
    compiler = find_compiler()
    assert compiler is not None, "a C++ compiler is needed"
    load(compiler.path, cache_dir() / "kernels")
    machine = Machine(torch.device("cpu"))
    machine.run()
    figures = [figure for form in args.weights for figure in of_experts(form, machine, args.turns)]
    figures.append(of_latents(args.turns))
    keep("blocks", {"threads": torch.get_num_threads()}, figures, shown(figures), args.to)


def shown(figures: Sequence[Mapping[str, object]]) -> str:
    head = ("", "rows", "weights", "time", "of what the machine allows")
    lines = [
        (f"{f['part']}", f"{f['rows']}", f"{f['weights']}", f"{1e3 * f['seconds']:.2f} ms", f"{f['share']:.0%}")  # type: ignore[operator]
        for f in figures
    ]
    return table(head, lines)


def of_experts(form: str, machine: Machine, turns: int) -> Iterator[dict[str, object]]:
    """Yield the figures of a layer of experts in a format: decode beside its floor, prefill beside a dense product."""
    gate_up = _stack(FORMATS[form].pack_gated, 2 * BETWEEN, HIDDEN)
    down = _stack(FORMATS[form].pack, HIDDEN, BETWEEN)
    each = (gate_up.nbytes + down.nbytes) / COUNT
    norm, dense = torch.ones(HIDDEN).bfloat16(), _dense()
    for rows in (*DECODE, PREFILL):
        x, weights = torch.randn(rows, HIDDEN).bfloat16(), torch.full((rows, CHOSEN), 1 / CHOSEN)
        draws = [_choice(rows) for _ in range(DRAWS)]
        turn = cycle(draws)

        def run(x: Tensor = x, weights: Tensor = weights, turn: Iterator[Tensor] = turn) -> None:
            experts(x, next(turn), weights, gate_up, down, COUNT, norm, 1e-6, x)

        seconds, beside = in_turns((run, dense), turns)
        machine.run()
        distinct = sum(len(draw.unique()) for draw in draws) / DRAWS
        operations = 6.0 * rows * CHOSEN * HIDDEN * BETWEEN
        in_turn = min(COUNT, DRAWS * distinct) * each  # what the draws read before they repeat: no cache holds it
        floor = distinct * each / machine.ceiling.rates(in_turn).bandwidth
        share = floor / seconds if rows in DECODE else operations / seconds / (DENSE_OPERATIONS / beside)
        yield {"part": "experts", "rows": rows, "weights": form, "seconds": seconds, "share": share}


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


def _choice(rows: int) -> Tensor:
    """Return experts int64 [rows, CHOSEN] at random, as if all were equally likely."""
    return torch.stack([torch.randperm(COUNT)[:CHOSEN].sort().values for _ in range(rows)])


if __name__ == "__main__":
    main()
