"""The bars that name other engines: several requests, equal bytes, our full cache, prefill, memory."""

from collections.abc import Iterator, Sequence

from bench.page.bar import Bar, mebibytes, percent, times
from bench.page.cells import (
    FAMILIES,
    FULL,
    KEEP_ALL,
    LLAMA,
    OPENVINO,
    OPENVINO_EVICTS,
    OPENVINO_SPARSE,
    OURS,
    PEERS,
    VLLM,
    choose,
    closest,
    decode_ratio,
    prefill_ratio,
)
from bench.page.kept import Kept
from bench.page.models import SHOWN
from bench.page.seen import Limits, step_need
from bench.peers.cells import Cell, Protocol

LONG = {"smollm2": (8192, (4, 8, 16)), "qwen2.5-coder-1.5b": (16384, (4, 8))}
MIDDLE = (4096, 8192)
BATCHES = (1, 4, 8, 16)


def peer_bars(kept: Kept, limits: Limits) -> list[Bar]:
    return [
        *(bar for model in LONG for bar in _several(kept, limits, model)),
        *_equal_bytes(kept, limits, "smollm2"),
        *(bar for model in LONG for bar in _full_cache(kept, model)),
        *(bar for model in LONG for bar in _prefill(kept, model)),
    ]


def _several(kept: Kept, limits: Limits, model: str) -> Iterator[Bar]:
    """Bar 1: the same number of requests for all, prompts long, ours at a quarter of the entries."""
    cells = kept.cells.get(model, ())
    prompt, batches = LONG[model]
    where = f"{SHOWN[model]}, prompts of {prompt // 1024}k"

    def ratios(engines: Sequence[str]) -> dict[str, float | None]:
        return {_case(n): _decodes(cells, (OURS,), engines, prompt, n) for n in batches}

    gains = {_case(n): _gain_of_floor(cells, limits, model, prompt, n, "same") for n in batches}
    yield Bar("1", f"{where}: decode over our full cache, of what the floor allows", gains, 0.85, percent)
    if model == "smollm2":
        yield Bar("1", f"{where}: decode over llama.cpp", ratios(LLAMA), 5.0, times)
        yield Bar("1", f"{where}: decode over vLLM", ratios(VLLM), 3.0, times)
        bytes_ = {_case(n): _bytes_over(cells, model, VLLM, prompt, n) for n in batches}
        yield Bar("1", f"{where}: bytes that a step of vLLM must read over ours", bytes_, None, times)
    yield Bar("1", f"{where}: decode over OpenVINO without eviction", ratios(OPENVINO), 1.5, times)
    yield Bar("1", f"{where}: decode over OpenVINO with eviction, as many kept", ratios(OPENVINO_EVICTS), 1.2, times)
    found = {name: _recall(cells, name) for name in (OURS, FULL, *OPENVINO_EVICTS)}
    yield Bar("1", f"{SHOWN[model]}: needles found", found, None, percent)


def _case(requests: int) -> str:
    return f"{requests}"


def _decodes(
    cells: Sequence[Cell],
    ours: Sequence[str],
    others: Sequence[str],
    prompt: int,
    requests: int | None,
    protocol: Protocol = "same",
) -> float | None:
    """Against the closest of the others."""
    mine, theirs = (choose(cells, names, prompt, requests, protocol) for names in (ours, others))
    pair = closest(mine, theirs, decode_ratio)
    return pair.ratio if pair else None


def _bytes_over(cells: Sequence[Cell], model: str, others: Sequence[str], prompt: int, requests: int) -> float | None:
    """What a decode step must read, weights and cache, over what ours must."""
    pair = closest(*(choose(cells, names, prompt, requests) for names in ((OURS,), others)), decode_ratio)
    return step_need(model, pair.other).bytes / step_need(model, pair.ours).bytes if pair else None


def _gain_of_floor(
    cells: Sequence[Cell], limits: Limits, model: str, prompt: int, requests: int | None, protocol: Protocol
) -> float | None:
    """The share of the gain over our full cache that the floors of the two predict."""
    pair = closest(*(choose(cells, (name,), prompt, requests, protocol) for name in (OURS, FULL)), decode_ratio)
    if pair is None:
        return None
    quick, slow = limits.floor(step_need(model, pair.ours)), limits.floor(step_need(model, pair.other))
    if quick is None or slow is None:
        return None
    return pair.ratio / ((pair.ours.requests / quick) / (pair.other.requests / slow))


def _recall(cells: Sequence[Cell], engine: str) -> float | None:
    """Of all needles of an engine, over prompt lengths."""
    found = [cell.recall for cell in cells if cell.engine == engine and cell.recall is not None]
    return sum(found) / len(found) if found else None


def _equal_bytes(kept: Kept, limits: Limits, model: str) -> Iterator[Bar]:
    """Bar 2: each engine with the largest batch that its cache allows."""
    cells = kept.cells.get(model, ())
    prompt, _ = LONG[model]
    where = f"{SHOWN[model]}, equal cache bytes"
    for name, engines, target in (("llama.cpp", LLAMA, 7.0), ("vLLM", VLLM, 4.3), ("OpenVINO", OPENVINO, 2.0)):
        ratio = _decodes(cells, (OURS,), engines, prompt, None, "equal-bytes")
        yield Bar("2", f"{where}: tokens/s over {name}, all kept", {"": ratio}, target, times)
    share = _gain_of_floor(cells, limits, model, prompt, None, "equal-bytes")
    yield Bar("2", f"{where}: tokens/s over our full cache, of what the floor allows", {"": share}, 0.85, percent)


def _full_cache(kept: Kept, model: str) -> Iterator[Bar]:
    """Bar 3: nothing evicted, so nothing of ours but the kernels."""
    cells = kept.cells.get(model, ())
    for prompt in MIDDLE:
        ratios = {_case(n): _decodes(cells, (FULL,), KEEP_ALL, prompt, n) for n in BATCHES}
        what = f"{SHOWN[model]}, prompts of {prompt // 1024}k: decode with our full cache over the best peer"
        yield Bar("3", what, ratios, 1.0, times)
    alone = {"": _decodes(cells, (OURS, FULL), PEERS, 512, 1)}
    yield Bar("3", f"{SHOWN[model]}, one request of 512: decode over the best peer", alone, 1.0, times)


def _prefill(kept: Kept, model: str) -> Iterator[Bar]:
    cells = kept.cells.get(model, ())
    others = tuple(name for name in KEEP_ALL if name not in OPENVINO)
    for name, engines, target in (
        ("OpenVINO, dense", (*OPENVINO, *OPENVINO_EVICTS), 0.95),
        ("the best other", others, 1.3),
        ("OpenVINO, sparse attention", OPENVINO_SPARSE, None),
    ):
        ratios = {f"{prompt // 1024}k": _prefills(cells, engines, prompt) for prompt in MIDDLE}
        yield Bar("3", f"{SHOWN[model]}: prefill over {name}", ratios, target, times)


def _prefills(cells: Sequence[Cell], engines: Sequence[str], prompt: int) -> float | None:
    pair = closest(*(choose(cells, names, prompt, 1) for names in ((OURS, FULL), engines)), prefill_ratio)
    return pair.ratio if pair else None


def memory_bar(kept: Kept) -> Bar:
    """Bar 5's last part: below every peer that keeps all, 8 requests of 8k; of several settings the smallest counts."""
    cells = [cell for cell in kept.cells.get("smollm2", ()) if cell.rss_bytes]
    ours = _resident(cells, (OURS,))
    held = {
        family: _resident(cells, [name for name in members if name in KEEP_ALL]) for family, members in FAMILIES.items()
    }
    over = {family: size - ours if size is not None and ours is not None else None for family, size in held.items()}
    return Bar("5", "SmolLM2-135M, 8 requests of 8k: resident memory that peers hold more than we", over, 0, mebibytes)


def _resident(cells: Sequence[Cell], engines: Sequence[str]) -> int | None:
    """At its peak, alone in memory if it was measured so; the least of these engines."""
    found = choose(cells, engines, 8192, 8, "resident") or choose(cells, engines, 8192, 8, "same")
    return min((cell.rss_bytes for cell in found if cell.rss_bytes), default=None)
