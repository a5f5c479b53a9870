"""Probes: the machine's bandwidth and matrix rate, each the maximum over several kernels.

Both drift if other processes share the host, so probes run between the rounds of a benchmark and keep the maximum.
Small matrices may fit in a processor's cache and be read faster, so reading is probed with several sizes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from ringkv.kernels.linear import linear
from ringkv.kernels.packing import BLOCK_K, PANEL_N, can_pack, pack
from ringkv.plan.floor import Rates

MiB = 1 << 20
AMOUNTS = (64 * MiB, 256 * MiB, 1024 * MiB)
PROBE_BYTES = max(AMOUNTS)  # memory that probes allocate; the matrices of products are small in comparison
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
class ProbeCase:
    """A function to time. amount: bytes moved, or operations."""

    name: str
    amount: float
    run: Callable[[], object]


@dataclass(frozen=True)
class Ceiling:
    """Results of the probes: bytes per second by size and case, and operations per second by case."""

    reading: dict[int, dict[str, float]]
    matrix: dict[str, float]

    def rates(self, amount: float) -> Rates:
        """Return the rates for a task that moves `amount` bytes: the maximum over sizes from the next smaller one up.

        A smaller size is never read more slowly, so the bandwidth is not underestimated.
        """
        smaller = max((size for size in self.reading if size <= amount), default=0)
        reading = [rate for size, cases in self.reading.items() if size >= smaller for rate in cases.values()]
        return Rates(max(reading), max(self.matrix.values()))


class Machine:
    """All probes of one device. Each run raises `ceiling` to the highest rates so far."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.ceiling = Ceiling({size: {} for size in AMOUNTS}, {})

    def run(self) -> None:
        for size, rates in self.ceiling.reading.items():
            raise_rates(rates, read_cases(size, self._device), self._device)
        raise_rates(self.ceiling.matrix, matrix_cases(self._device), self._device)


def raise_rates(rates: dict[str, float], cases: Iterable[ProbeCase], device: torch.device) -> None:
    """Time each case, and raise its rate, by name."""
    for case in cases:
        timed = (case.amount / seconds(case.run, device) for _ in range(REPEATS))
        rates[case.name] = max(rates.get(case.name, 0.0), *timed)


def read_cases(size: int, device: torch.device) -> Iterator[ProbeCase]:
    """Yield cases that move `size` bytes. Iteration allocates the memory and its end releases it."""
    matrix = torch.ones(size // (2 * WIDTH), WIDTH, dtype=torch.bfloat16, device=device)
    row = torch.ones(1, WIDTH, dtype=torch.bfloat16, device=device)
    upper, lower = matrix.chunk(2)
    yield ProbeCase("matrix times vector", size, lambda: torch.mv(matrix, row[0]))
    yield ProbeCase("linear of 1 row", size, lambda: F.linear(row, matrix))
    if can_pack(matrix):
        packed = as_packed(matrix)
        rows = row.expand(FEW, -1).contiguous()
        yield ProbeCase("our linear of 1 row", size, lambda: linear(row, packed))
        yield ProbeCase(f"our linear of {FEW} rows", size, lambda: linear(rows, packed))
    yield ProbeCase("sum", size, lambda: matrix.view(torch.float32).sum())
    yield ProbeCase("largest", size, lambda: matrix.view(torch.int32).max())
    yield ProbeCase("copy of one half onto the other", size, lambda: upper.copy_(lower))


def matrix_cases(device: torch.device) -> Iterator[ProbeCase]:
    """Yield bfloat16 products and causal attention in the shapes of prefill. Masked pairs are not counted.

    Elements are random, because matrix units are faster if all elements are equal.
    """
    for m, k, n in PRODUCTS:
        x = torch.randn(m, k, dtype=torch.bfloat16, device=device)
        weight = torch.randn(n, k, dtype=torch.bfloat16, device=device)
        name = f"[{m}, {k}] x [{k}, {n}]"
        yield ProbeCase(name, 2.0 * m * k * n, partial(F.linear, x, weight))
        if can_pack(weight):
            yield ProbeCase(f"our {name}", 2.0 * m * k * n, partial(linear, x, pack(weight)))
    for heads, tokens, width in ATTENTION:
        q = torch.randn(1, heads, tokens, width, dtype=torch.bfloat16, device=device)
        name = f"attention of {tokens} tokens, {heads} heads of {width}"
        yield ProbeCase(name, 2.0 * heads * width * tokens * (tokens + 1), partial(_attention, q))


def as_packed(weight: torch.Tensor) -> torch.Tensor:
    """View a matrix of ones in the packed shape; the order of equal elements does not matter."""
    return weight.view(weight.shape[0] // PANEL_N, weight.shape[1] // BLOCK_K, BLOCK_K // 2, PANEL_N, 2)


def _attention(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time a call in seconds, including the work that it starts on the device."""
    _synchronize(device)
    started = time.perf_counter()
    run()
    _synchronize(device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
