"""Cells: choosing among the peers' cells."""

from collections.abc import Iterable, Sequence

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


def choose(
    cells: Iterable[Cell],
    engines: Sequence[str],
    prompt: int,
    requests: int | None = None,
    protocol: Protocol = "same",
    weights: Sequence[str] = SIXTEEN,
) -> list[Cell]:
    """Those of about this prompt length: a tenth shorter is taken too, for a context that must hold an answer."""
    return [
        cell
        for cell in cells
        if cell.engine in engines
        and cell.protocol == protocol
        and cell.weights in weights
        and 0.9 * prompt <= cell.prompt <= prompt
        and requests in (None, cell.requests)
    ]


def fastest_prefill(cells: Iterable[Cell]) -> Cell | None:
    return max((cell for cell in cells if cell.prefill_tps), key=lambda cell: cell.prefill_tps or 0.0, default=None)


def most_tokens(cells: Iterable[Cell]) -> Cell | None:
    return max((cell for cell in cells if cell.decode_tps), key=lambda cell: cell.decode_tps or 0.0, default=None)


def decode_ratio(ours: Cell | None, other: Cell | None) -> float | None:
    """How many times as many tokens a second the first decodes; by turns that both shared, where they did."""
    if ours is None or other is None or not ours.decode_tps or not other.decode_tps:
        return None
    if ours.ringkv_decodes and other.ringkv_decodes:
        return other.ringkv_decodes / ours.ringkv_decodes
    return ours.decode_tps / other.decode_tps


def prefill_ratio(ours: Cell | None, other: Cell | None) -> float | None:
    """How many times as many prompt tokens a second the first reads."""
    if ours is None or other is None or not ours.prefill_tps or not other.prefill_tps:
        return None
    if ours.ringkv_prefills and other.ringkv_prefills:
        return other.ringkv_prefills / ours.ringkv_prefills
    return ours.prefill_tps / other.prefill_tps
