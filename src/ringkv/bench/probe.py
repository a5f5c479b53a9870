"""Probes: how fast this machine reads memory and multiplies matrices, each the best of several ways.

Neighbours on the same host make both drift, so probes run between the rounds of a benchmark and the best ever seen
counts. What fits in a large cache is read faster than what does not: reading is probed with several amounts.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from ringkv.kernels.linear import linear
from ringkv.kernels.packing import DEEP, WIDE, can_pack, pack
from ringkv.plan.floor import Rates

MiB = 1 << 20
AMOUNTS = (64 * MiB, 256 * MiB, 1024 * MiB)
PROBE_BYTES = max(AMOUNTS)  # that the probes hold while they run; the matrices are small beside it
REPEATS = 3
WIDTH = 4096
FEW = 4  # rows

# out [M, N] = x [M, K] times weight [N, K] transposed, as prefill computes: (M, K, N)
PRODUCTS = (
    (512, 576, 3072),
    (2048, 576, 3072),
    (2048, 1536, 576),
    (512, 1536, 17920),
    (2048, 1536, 17920),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
)
ATTENTION = ((9, 2048, 64), (12, 2048, 128))  # heads, tokens, head_dim


@dataclass(frozen=True)
class Way:
    """One thing to time, and how much of something it does: bytes moved, or operations."""

    name: str
    amount: float
    run: Callable[[], object]


class Probe:
    """Rates by way, the best seen so far."""

    def __init__(self, ways: Callable[[torch.device], Iterator[Way]], device: torch.device) -> None:
        self._ways, self._device = ways, device
        self.rates: dict[str, float] = {}

    def run(self) -> None:
        for way in self._ways(self._device):
            rates = (way.amount / seconds(way.run, self._device) for _ in range(REPEATS))
            self.rates[way.name] = max(self.rates.get(way.name, 0.0), *rates)


@dataclass(frozen=True)
class Ceiling:
    """What the probes found: bytes a second by amount read and by way, operations a second by way."""

    reading: Mapping[int, Mapping[str, float]]
    matrix: Mapping[str, float]

    def rates(self, amount: float) -> Rates:
        """For work that moves so many bytes: the best of the probes that move as many or more, and of the next smaller.

        A smaller amount is read no slower, so this never understates the machine.
        """
        smaller = max((size for size in self.reading if size <= amount), default=0)
        reading = [rate for size, ways in self.reading.items() if size >= smaller for rate in ways.values()]
        return Rates(max(reading), max(self.matrix.values()))


class Machine:
    """All probes of one device."""

    def __init__(self, device: torch.device) -> None:
        self._reading = {size: Probe(reading(size), device) for size in AMOUNTS}
        self._matrix = Probe(multiplying, device)

    def run(self) -> None:
        for probe in (*self._reading.values(), self._matrix):
            probe.run()

    @property
    def ceiling(self) -> Ceiling:
        return Ceiling({size: dict(probe.rates) for size, probe in self._reading.items()}, dict(self._matrix.rates))


def reading(size: int) -> Callable[[torch.device], Iterator[Way]]:
    """Ways to move `size` bytes. The memory is taken when they are asked for, and given back after the last."""

    def ways(device: torch.device) -> Iterator[Way]:
        matrix = torch.ones(size // (2 * WIDTH), WIDTH, dtype=torch.bfloat16, device=device)
        row = torch.ones(1, WIDTH, dtype=torch.bfloat16, device=device)
        upper, lower = matrix.chunk(2)
        yield Way("matrix times vector", size, lambda: torch.mv(matrix, row[0]))
        yield Way("linear of 1 row", size, lambda: F.linear(row, matrix))
        if can_pack(matrix):
            packed = as_packed(matrix)
            rows = row.expand(FEW, -1).contiguous()
            yield Way("our linear of 1 row", size, lambda: linear(row, packed))
            yield Way(f"our linear of {FEW} rows", size, lambda: linear(rows, packed))
        yield Way("sum", size, lambda: matrix.view(torch.float32).sum())
        yield Way("largest", size, lambda: matrix.view(torch.int32).max())
        yield Way("copy of one half onto the other", size, lambda: upper.copy_(lower))

    return ways


def multiplying(device: torch.device) -> Iterator[Way]:
    """bfloat16 products and causal attention in the shapes of prefill; of attention the half that counts.

    Of random numbers: a matrix unit is faster where all are equal, which no model's are.
    """
    for rows, inner, columns in PRODUCTS:
        x = torch.randn(rows, inner, dtype=torch.bfloat16, device=device)
        weight = torch.randn(columns, inner, dtype=torch.bfloat16, device=device)
        name = f"[{rows}, {inner}] x [{inner}, {columns}]"
        yield Way(name, 2.0 * rows * inner * columns, partial(F.linear, x, weight))
        if can_pack(weight):
            yield Way(f"our {name}", 2.0 * rows * inner * columns, partial(linear, x, pack(weight)))
    for heads, tokens, width in ATTENTION:
        q = torch.randn(1, heads, tokens, width, dtype=torch.bfloat16, device=device)
        name = f"attention of {tokens} tokens, {heads} heads of {width}"
        yield Way(name, 2.0 * heads * width * tokens * (tokens + 1), partial(_attention, q))


def as_packed(weight: torch.Tensor) -> torch.Tensor:
    """The same memory as if it were packed: for ones the order makes no difference."""
    return weight.view(weight.shape[0] // WIDE, weight.shape[1] // DEEP, DEEP // 2, WIDE, 2)


def _attention(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes, to the end of what it started on the device."""
    _settle(device)
    started = time.perf_counter()
    work()
    _settle(device)
    return time.perf_counter() - started


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
