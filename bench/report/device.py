"""device: what `bench.device` measured on a GPU: Llama-3.1-8B's steps and prefill, experts and latents."""

from collections import defaultdict
from collections.abc import Sequence

from bench.results import ResultRow, figures, newest, table


def device(rows: Sequence[ResultRow]) -> str:
    """Return the tables of steps, of prefill, and of single layers, for each GPU."""
    by_gpu: dict[str, list[ResultRow]] = defaultdict(list)
    for figure in figures(rows, "device", model="llama-3.1-8b, random weights"):
        by_gpu[figure["processor"]].append(figure)
    return "\n\n".join(f"{gpu.partition(',')[0]}:\n\n{tables_of(mine)}" for gpu, mine in by_gpu.items())


def tables_of(figures: Sequence[ResultRow]) -> str:
    """Return the tables of one device, without those that have no figures."""
    by_kind: dict[str, list[ResultRow]] = defaultdict(list)
    for figure in figures:
        # Figures that are not in the table of results yet have no run. Older ones have no format, experts no entries.
        by_kind[figure["kind"]].append({"run": "", "kv_format": "plain", "live": 0, **figure})
    best = max((figure["rate"] for figure in by_kind["bandwidth"]), default=0.0)
    full = {
        figure["run"]: figure["slots"] / figure["step_s"]
        for figure in by_kind["decode"]
        if figure["cache"] == "full" and figure["kv_format"] == "plain"
    }
    decode = table(
        ("cache", "format", "slots", "ms a step", "tokens/s", "of the floor", "gain over full"),
        [
            _decode(step, full.get(step["run"]), best)
            for step in sorted(newest(by_kind["decode"], "cache", "budget", "backend", "kv_format"), key=_order)
        ],
    )
    prefill = table(
        ("prompt", "chunk", "prefill", "TFLOP/s", "compress, insert"),
        list(map(_prefill, newest(by_kind["prefill"], "tokens", "chunk"))),
    )
    blocks = table(
        ("one layer", "rows", "us", "GB/s", "TFLOP/s"),
        list(map(_block, _largest(newest(by_kind["block"], "part", "slots", "live")))),
    )
    return "\n\n".join(shown for shown in (decode, prefill, blocks) if shown.count("\n") > 1)


def _largest(layers: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows of each part with the most entries; all rows of experts, which have none."""
    largest: dict[str, int] = defaultdict(int)
    for layer in layers:
        largest[layer["part"]] = max(largest[layer["part"]], layer["slots"] * layer["live"])
    return [layer for layer in layers if layer["slots"] * layer["live"] == largest[layer["part"]]]


def _order(step: ResultRow) -> tuple[bool, int, bool]:
    """The full cache comes first, then slots from the largest, and those without graphs last."""
    return step["cache"] != "full", -step["budget"], step["backend"] == "eager"


def _decode(step: ResultRow, full: float | None, best: float) -> tuple[str, ...]:
    rate = step["slots"] / step["step_s"]
    sizes = f"{step['slots']} x {step['live']:,}"
    share = f"{step['need_bytes'] / best / step['step_s']:.0%}" if best else ""
    gain = f"{rate / full:.2f}x" if full else ""
    form = step["kv_format"] if step["backend"] == "inductor" else f"{step['kv_format']}, no graphs"
    return (step["cache"], form, sizes, f"{1e3 * step['step_s']:.1f}", f"{rate:,.0f}", share, gain)


def _prefill(prompt: ResultRow) -> tuple[str, ...]:
    rate = prompt["operations"] / prompt["s"] / 1e12
    times = f"{prompt['s']:.2f} s", f"{rate:.0f}", f"{1e3 * prompt['compress_s']:.0f} ms"
    return (f"{prompt['tokens']:,}", f"{prompt['chunk']:,}", *times)


def _block(layer: ResultRow) -> tuple[str, ...]:
    rows = f"{layer['slots']:,}" + (f" x {layer['live']:,}" if layer["live"] else "")
    reads, rate = f"{layer['rate'] / 1e9:,.0f}", f"{layer['operations'] / layer['s'] / 1e12:,.0f}"
    return (layer["part"], rows, f"{1e6 * layer['s']:,.0f}", reads, rate)
