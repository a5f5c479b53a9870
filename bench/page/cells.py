"""Cells: choosing among the peers' cells."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bench.page.kept import SIXTEEN
from bench.peers.cells import Cell, Protocol

OURS, FULL = "ringkv", "ringkv-full"
LLAMA = ("llama.cpp", "llama.cpp-noflash", "llama.cpp-bf16kv", "llama.cpp-q8kv")
VLLM = ("vllm",)
OPENVINO = ("openvino", "openvino-f16kv", "openvino-u8kv")
OPENVINO_EVICTS = ("openvino-evict", "openvino-evict-u8kv")
OPENVINO_SPARSE = ("openvino-xattention", "openvino-trishape")
KEEP_ALL = (*LLAMA, *VLLM, *OPENVINO, "transformers")  # peers that drop nothing and compute all
PEERS = (*KEEP_ALL, *OPENVINO_EVICTS, *OPENVINO_SPARSE)
FAMILIES = {
    "llama.cpp": LLAMA,
    "vLLM": VLLM,
    "OpenVINO": (*OPENVINO, *OPENVINO_EVICTS, *OPENVINO_SPARSE),
    "transformers": ("transformers",),
}


def choose(
    cells: Iterable[Cell],
    engines: Sequence[str],
    prompt: int,
    requests: int | None = None,
    protocol: Protocol = "same",
    weights: Sequence[str] | None = SIXTEEN,
) -> list[Cell]:
    """Those of about this prompt length: a tenth shorter is taken too, for a context that must hold an answer.

    `weights` None: of any.
    """
    return [
        cell
        for cell in cells
        if cell.engine in engines
        and cell.protocol == protocol
        and (weights is None or cell.weights in weights)
        and 0.9 * prompt <= cell.prompt <= prompt
        and requests in (None, cell.requests)
    ]


class Pair(NamedTuple):
    """Two cells of one run, and how many times as fast the first is."""

    ours: Cell
    other: Cell
    ratio: float


Compare = Callable[[Cell, Cell], float | None]


def closest(ours: Iterable[Cell], others: Iterable[Cell], compare: Compare) -> Pair | None:
    """The pair in which the best of ours is least ahead. Machines drift, so only cells of one run make a pair."""
    mine = list(ours)
    pairs = [pair for other in others if (pair := _best(mine, other, compare))]
    return min(pairs, key=lambda pair: pair.ratio, default=None)


def _best(ours: Iterable[Cell], other: Cell, compare: Compare) -> Pair | None:
    ratios = ((cell, compare(cell, other)) for cell in ours if cell.run == other.run)
    pairs = [Pair(cell, other, ratio) for cell, ratio in ratios if ratio is not None]
    return max(pairs, key=lambda pair: pair.ratio, default=None)


def decode_ratio(ours: Cell, other: Cell) -> float | None:
    """How many times as many tokens a second the first decodes; by turns that both shared, where they did."""
    if not ours.decode_tps or not other.decode_tps:
        return None
    if ours.ringkv_decodes and other.ringkv_decodes:
        return other.ringkv_decodes / ours.ringkv_decodes
    return ours.decode_tps / other.decode_tps


def prefill_ratio(ours: Cell, other: Cell) -> float | None:
    """How many times as many prompt tokens a second the first reads."""
    if not ours.prefill_tps or not other.prefill_tps:
        return None
    if ours.ringkv_prefills and other.ringkv_prefills:
        return other.ringkv_prefills / ours.ringkv_prefills
    return ours.prefill_tps / other.prefill_tps
