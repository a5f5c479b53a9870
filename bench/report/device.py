"""device: what `bench.device` measured on a GPU: Llama-3.1-8B's steps and prefill, experts and latents."""

from collections.abc import Sequence

from bench.results import ResultRow, figures, newest, table


def device(rows: Sequence[ResultRow]) -> str:
    """Return the tables of steps, of prefill, and of single layers, for each GPU."""
    found = figures(rows, "device", model="llama-3.1-8b, random weights")
    gpus = dict.fromkeys(one["processor"] for one in found)
    each = {gpu: [one for one in found if one["processor"] == gpu] for gpu in gpus}
    return "\n\n".join(f"{gpu.partition(',')[0]}:\n\n{tables_of(mine)}" for gpu, mine in each.items())


def tables_of(figures: Sequence[ResultRow]) -> str:
    """Return the tables of one device, without those that have no figures."""
    found = [{"run": "", **figure} for figure in figures]  # those of one run have no name yet
    best = max((one["rate"] for one in found if one["kind"] == "bandwidth"), default=0.0)
    measured = [{"kv_format": "plain"} | one for one in found if one["kind"] == "decode"]
    steps = sorted(newest(measured, "cache", "budget", "backend", "kv_format"), key=_order)
    full = {
        one["run"]: one["slots"] / one["step_s"]
        for one in measured
        if one["cache"] == "full" and one["kv_format"] == "plain"
    }
    prompts = newest([one for one in found if one["kind"] == "prefill"], "tokens", "chunk")
    layers = [one | {"live": one.get("live", 0)} for one in found if one["kind"] == "block"]
    decode = table(
        ("cache", "format", "slots", "ms a step", "tokens/s", "of the floor", "gain over full"),
        [_decode(one, full.get(one["run"]), best) for one in steps],
    )
    prefill = table(("prompt", "chunk", "prefill", "TFLOP/s", "compress, insert"), list(map(_prefill, prompts)))
    blocks = table(
        ("one layer", "rows", "us", "GB/s", "TFLOP/s"),
        [_block(one) for one in _largest(newest(layers, "part", "slots", "live"))],
    )
    return "\n\n".join(shown for shown in (decode, prefill, blocks) if shown.count("\n") > 1)


def _largest(layers: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows of each part with the most entries; all rows of experts, which have none."""
    most = {
        one["part"]: one["slots"] * one["live"] for one in sorted(layers, key=lambda one: one["slots"] * one["live"])
    }
    return [one for one in layers if one["slots"] * one["live"] == most[one["part"]]]


def _order(one: ResultRow) -> tuple[bool, int, bool]:
    """The full cache comes first, then slots from the largest, and those without graphs last."""
    return one["cache"] != "full", -one["budget"], one["backend"] == "eager"


def _decode(one: ResultRow, full: float | None, best: float) -> tuple[str, ...]:
    rate = one["slots"] / one["step_s"]
    sizes = f"{one['slots']} x {one['live']:,}"
    step, share = f"{1e3 * one['step_s']:.1f}", f"{one['need_bytes'] / best / one['step_s']:.0%}" if best else ""
    form = one["kv_format"] if one["backend"] == "inductor" else f"{one['kv_format']}, no graphs"
    return (one["cache"], form, sizes, step, f"{rate:,.0f}", share, f"{rate / full:.2f}x" if full else "")


def _prefill(one: ResultRow) -> tuple[str, ...]:
    rate = one["operations"] / one["s"] / 1e12
    times = f"{one['s']:.2f} s", f"{rate:.0f}", f"{1e3 * one['compress_s']:.0f} ms"
    return (f"{one['tokens']:,}", f"{one['chunk']:,}", *times)


def _block(one: ResultRow) -> tuple[str, ...]:
    rows = f"{one['slots']:,}" + (f" x {one['live']:,}" if one["live"] else "")
    reads, rate = f"{one['rate'] / 1e9:,.0f}", f"{one['operations'] / one['s'] / 1e12:,.0f}"
    return (one["part"], rows, f"{1e6 * one['s']:,.0f}", reads, rate)
