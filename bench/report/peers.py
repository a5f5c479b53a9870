"""peers: ringkv beside other engines: pairs that were measured side by side, and a column per kind of machine."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import NamedTuple

from bench.peers.cells import PeerCell, Protocol
from bench.report.chart import Bars, Panel, Point, bars, chart
from bench.report.machine import MACHINES, MODELS
from bench.results import ResultRow, cells_of, figures, newest, table

FIRST = "intel-amx_bf16"
OVER = ("model", "engine", "weights")

OURS, FULL = "ringkv", "ringkv-full"
FAMILIES: Mapping[str, Sequence[str]] = {
    "ringkv, a quarter kept": (OURS,),
    "ringkv, all kept": (FULL,),
    "llama.cpp": ("llama.cpp", "llama.cpp-noflash", "llama.cpp-bf16kv", "llama.cpp-q8kv"),
    "vLLM": ("vllm",),
    "OpenVINO": ("openvino", "openvino-f16kv", "openvino-u8kv"),
    "OpenVINO, evicting": ("openvino-evict", "openvino-evict-u8kv"),  # during decode
    "OpenVINO, sparse prefill": ("openvino-xattention", "openvino-trishape"),  # less than causal attention
    "transformers": ("transformers",),
}
BITS = {16: ("bf16", "f16", "fp16"), 8: ("int8",), 4: ("int4",)}  # our engine's names for its weights


class Pair(NamedTuple):
    """Two cells of one run, and the first's speed over the second's."""

    ours: PeerCell
    other: PeerCell
    ratio: float


def cells(table: Iterable[ResultRow], machine: str, model: str) -> list[PeerCell]:
    return cells_of(PeerCell, figures(table, "peers", machine=machine, model=model))


def choose(
    cells: Iterable[PeerCell],
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
        for cell in cells
        if cell.engine in engines
        and cell.protocol == protocol
        and (weights is None or cell.weights in weights)
        and 0.9 * prompt <= cell.prompt <= prompt
        and requests in (None, cell.requests)
    ]


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


def engines(rows: Sequence[ResultRow]) -> str:
    """Return the table of throughput in equal cache bytes, and of peak memory."""
    measured = cells(rows, FIRST, "smollm2")
    lines = []
    for name, pair in equal_bytes(rows).items():
        members = FAMILIES[name]
        size = min((cell.rss_bytes for cell in measured if cell.engine in members and cell.rss_bytes), default=None)
        if size is not None:
            rate, ratio = f"{pair.other.decode_tps:,.0f}", "" if OURS in members else f"{pair.ratio:.1f}x"
            lines.append((name, f"{pair.other.requests}", rate, ratio, f"{size / 1e6:,.0f} MB"))
    head = ("engine", "requests in 1.5 GB of KV cache", "total tokens/s", "ringkv is faster by")
    return table((*head, "process memory, 8 requests"), lines)


def equal_bytes(rows: Sequence[ResultRow]) -> Mapping[str, Pair]:
    """Return by family what was measured in equal bytes of cache: ringkv's cell, and the family's fastest."""
    equal = [cell for cell in cells(rows, FIRST, "smollm2") if cell.protocol == "equal-bytes"]
    ours = [cell for cell in equal if cell.engine == OURS]
    pairs = {
        name: closest(ours, [cell for cell in equal if cell.engine in members]) for name, members in FAMILIES.items()
    }
    return {name: pair for name, pair in pairs.items() if pair is not None}


def equal_memory(rows: Sequence[ResultRow]) -> str:
    """Return a chart of how many requests fit in equal bytes of cache, and of their throughput."""
    pairs = equal_bytes(rows)
    plots = (
        Bars("requests at once", {name: pair.other.requests for name, pair in pairs.items()}),
        Bars("tokens/s of all together", {name: pair.other.decode_tps or 0 for name, pair in pairs.items()}),
    )
    title = "1.5 GB of KV cache, SmolLM2-135M at 16 bits, prompts of 7,680 tokens, Xeon with AMX, 2 cores"
    return bars(title, plots, [name for name in pairs if name.startswith(OURS)])


def by_engine(rows: Sequence[ResultRow]) -> str:
    """Return the table of the lowest and highest speed ratio over each engine, with the number of workloads."""
    lines = []
    for metric, bits, (name, engines) in product(("decode", "prefill"), BITS, FAMILIES.items()):
        ratios = [_ratios(rows, machine, metric, bits, engines) for machine in MACHINES]
        is_shown = any(ratios) and OURS not in engines and FULL not in engines and name != "transformers"
        if is_shown and ("," not in name or (metric, bits) == ("decode", 16)):  # other settings: where they matter most
            lines.append((f"{metric}, {bits} bits", name, *map(_range, ratios)))
    return table(("", "ringkv over", *MACHINES.values()), lines)


def _ratios(rows: Sequence[ResultRow], machine: str, metric: str, bits: int, engines: Sequence[str]) -> list[float]:
    """Return for each workload the ratio of ringkv's faster setting to the engine's fastest setting."""
    pairs = []
    for measured in (cells(rows, machine, model) for model in MODELS):
        for prompt, requests in sorted({(cell.prompt, cell.requests) for cell in measured}):
            ours = choose(measured, (OURS, FULL), prompt, requests, weights=BITS[bits])
            pairs.append(closest(ours, choose(measured, engines, prompt, requests, weights=None), metric))
    return [pair.ratio for pair in pairs if pair]


def _range(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    slower = sum(ratio < 1 for ratio in ratios)
    ends = dict.fromkeys(f"{end(ratios):.2f}x" for end in (min, max))
    return f"{' to '.join(ends)} ({len(ratios)})" + f", **slower in {slower}**" * bool(slower)


def perplexity(rows: Sequence[ResultRow]) -> str:
    """Return the table of perplexity at fewer bits per weight over the same engine's 16 bits, by model."""
    measured = newest([row for row in figures(rows, "perplexity") if row["over_16_bits"]], *OVER, "machine")
    shares = {itemgetter(*OVER)(figure): figure for figure in sorted(measured, key=itemgetter("run"))}
    # Ours come first. Of each engine, those with settings after the weights come last.
    pairs = {(engine != OURS, engine, "," in weights, weights) for _, engine, weights in shares}
    lines = []
    for _, engine, _, weights in sorted(pairs):
        shown = (shares.get((model, engine, weights)) for model in MODELS)
        lines.append((f"{engine} {weights}", *(f"{figure['over_16_bits']:+.2%}" if figure else "" for figure in shown)))
    machines = dict.fromkeys(MACHINES[figure["machine"]] for figure in shares.values())
    return f"{table(('engine and weights', *MODELS.values()), lines)}\n\nMachine: {'; '.join(machines)}."


def throughput(rows: Sequence[ResultRow]) -> str:
    """Return a chart of tokens per second against prompt length, for all engines of one run."""
    measured = [cell for cell in cells(rows, FIRST, "smollm2") if cell.protocol == "same" and cell.decode_tps]
    runs = [cell.run for cell in measured]
    widest = [cell for cell in measured if cell.run == max(set(runs), key=runs.count)]
    panels = []
    for requests, title in ((1, "1 request, tokens/s"), (16, "16 requests, tokens/s of all together")):
        shown = [cell for cell in widest if cell.requests == requests]
        lines = {
            name: [Point(cell.prompt, cell.decode_tps or 0) for cell in shown if cell.engine == engines[0]]
            for name, engines in FAMILIES.items()
            if "sparse" not in name
        }
        panels.append(Panel(title, lines, {cell.prompt: f"{cell.prompt:,}" for cell in shown}, "prompt tokens"))
    return chart("Decode throughput against prompt length (SmolLM2-135M, Intel Xeon with AMX, 2 cores)", panels)
