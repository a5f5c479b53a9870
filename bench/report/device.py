"""device: what `bench.device` measured on a GPU: Llama-3.1-8B's steps and prefill, experts and latents."""

from collections.abc import Sequence

from bench.results import ResultRow, figures, newest, table


def device(rows: Sequence[ResultRow]) -> str:
    """Return the tables of steps, of prefill, and of experts and latents."""
    found = figures(rows, "device", model="llama-3.1-8b, random weights")
    best = max((one["rate"] for one in found if one["kind"] == "bandwidth"), default=0.0)
    measured = [{"kv_format": "plain"} | one for one in found if one["kind"] == "decode"]
    steps = newest(measured, "processor", "cache", "budget", "backend", "kv_format")
    full = max(one["slots"] / one["step_s"] for one in steps if one["cache"] == "full" and one["kv_format"] == "plain")
    prompts = newest([one for one in found if one["kind"] == "prefill"], "processor", "tokens", "chunk")
    decode = table(
        ("GPU", "cache", "format", "graphs", "slots", "step", "tokens/s", "of the floor", "gain over full"),
        [_decode(one, full, best) for one in steps],
    )
    prefill = table(("GPU", "prompt", "chunk", "prefill", "TFLOP/s", "compress, insert"), list(map(_prefill, prompts)))
    measured = [one | {"live": one.get("live", 0)} for one in found if one["kind"] == "block"]
    parts = newest(measured, "processor", "part", "slots", "live")
    blocks = table(
        ("GPU", "one layer", "rows", "time", "reads", "of the best rate", "TFLOP/s"),
        [_block(one, best) for one in parts],
    )
    return f"{decode}\n\n{prefill}\n\n{blocks}"


def _gpu(one: ResultRow) -> str:
    name: str = one["processor"].partition(",")[0]
    return name


def _decode(one: ResultRow, full: float, best: float) -> tuple[str, ...]:
    rate, floor = one["slots"] / one["step_s"], one["need_bytes"] / best
    sizes = f"{one['slots']} x {one['live']:,}"
    step, share = f"{1e3 * one['step_s']:.1f} ms", f"{floor / one['step_s']:.0%}"
    cache = one["cache"], one["kv_format"], one["backend"]
    return (_gpu(one), *cache, sizes, step, f"{rate:,.0f}", share, f"{rate / full:.2f}x")


def _prefill(one: ResultRow) -> tuple[str, ...]:
    rate = one["operations"] / one["s"] / 1e12
    times = f"{one['s']:.2f} s", f"{rate:.0f}", f"{1e3 * one['compress_s']:.0f} ms"
    return (_gpu(one), f"{one['tokens']:,}", f"{one['chunk']:,}", *times)


def _block(one: ResultRow, best: float) -> tuple[str, ...]:
    rows = f"{one['slots']:,}" + (f" x {one['live']:,}" if one["live"] else "")
    reads, rate = f"{one['rate'] / 1e9:,.0f} GB/s", f"{one['operations'] / one['s'] / 1e12:,.0f}"
    return (_gpu(one), one["part"], rows, f"{1e6 * one['s']:,.0f} us", reads, f"{one['rate'] / best:.0%}", rate)
