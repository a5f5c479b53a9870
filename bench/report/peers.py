"""peers: pairs of ringkv and another engine that were measured side by side."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.peers.cells import PeerCell, Protocol, from_figures
from bench.results import ResultRow, figures

OURS, FULL = "ringkv", "ringkv-full"
LLAMA = ("llama.cpp", "llama.cpp-noflash", "llama.cpp-bf16kv", "llama.cpp-q8kv")
VLLM = ("vllm",)
OPENVINO = ("openvino", "openvino-f16kv", "openvino-u8kv")
EVICTS = ("openvino-evict", "openvino-evict-u8kv")  # evict during decode
SPARSE = ("openvino-xattention", "openvino-trishape")  # compute less than causal attention in prefill
TRANSFORMERS = ("transformers",)
KEEP_ALL = (*LLAMA, *VLLM, *OPENVINO, *TRANSFORMERS)
PEERS = (*KEEP_ALL, *EVICTS, *SPARSE)
FAMILIES: Mapping[str, Sequence[str]] = {
    "ringkv, a quarter kept": (OURS,),
    "ringkv, all kept": (FULL,),
    "llama.cpp": LLAMA,
    "vLLM": VLLM,
    "OpenVINO": OPENVINO,
    "OpenVINO, evicting": EVICTS,
    "OpenVINO, sparse prefill": SPARSE,
    "transformers": TRANSFORMERS,
}
BITS = {16: ("bf16", "f16", "fp16"), 8: ("int8",), 4: ("int4",)}  # our engine's names for its weights


class Pair(NamedTuple):
    """Two cells of one run, and the first's speed over the second's."""

    ours: PeerCell
    other: PeerCell
    ratio: float


def cells(table: Iterable[ResultRow], machine: str, model: str) -> list[PeerCell]:
    return from_figures(figures(table, "peers", machine=machine, model=model))


def choose(
    found: Iterable[PeerCell],
    engines: Sequence[str],
    prompt: int,
    requests: int | None = None,
    protocol: Protocol = "same",
    weights: Sequence[str] | None = BITS[16],
) -> list[PeerCell]:
    """Return the cells of these engines at this prompt length or up to a tenth below it.

    A prompt that would fill the context is shortened, so that the answer fits too.
    None: any number of requests, any weights.
    """
    return [
        cell
        for cell in found
        if cell.engine in engines
        and cell.protocol == protocol
        and (weights is None or cell.weights in weights)
        and 0.9 * prompt <= cell.prompt <= prompt
        and requests in (None, cell.requests)
    ]


def peak(found: Iterable[PeerCell], engines: Sequence[str]) -> int | None:
    """Return the peak resident memory of the engines' smallest setting, in bytes."""
    return min((cell.rss_bytes for cell in found if cell.engine in engines and cell.rss_bytes), default=None)


def closest(ours: Sequence[PeerCell], others: Iterable[PeerCell], metric: str = "decode") -> Pair | None:
    """Return the pair in which our best cell has the smallest lead; both cells are of one run."""
    pairs = [pair for other in others if (pair := _best(ours, other, metric))]
    return min(pairs, key=lambda pair: pair.ratio, default=None)


def _best(ours: Sequence[PeerCell], other: PeerCell, metric: str) -> Pair | None:
    ratios = [(cell, _ratio(cell, other, metric)) for cell in ours if cell.run == other.run]
    pairs = [Pair(cell, other, ratio) for cell, ratio in ratios if ratio is not None]
    return max(pairs, key=lambda pair: pair.ratio, default=None)


def _ratio(ours: PeerCell, other: PeerCell, metric: str) -> float | None:
    """Return the ratio over adjacent turns of both engines, or of their medians if no such turns were recorded."""
    rates = getattr(ours, f"{metric}_tps"), getattr(other, f"{metric}_tps")
    turns = getattr(ours, f"ringkv_{metric}s"), getattr(other, f"ringkv_{metric}s")
    if not all(rates):
        return None
    return float(turns[1] / turns[0] if all(turns) else rates[0] / rates[1])
