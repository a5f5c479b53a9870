"""tables: the journal as tables of whole steps against their floor and the plan, kernels, prefill and bandwidth."""

from bench.device.journal import DeviceJournal, Figure
from bench.device.parts import planned
from bench.device.scale import Scale
from bench.results import table


def tables(scale: Scale, journal: DeviceJournal) -> str:
    best = max((one["rate"] for kind in ("bandwidth", "kernel") for one in journal.of(kind)), default=0.0)
    parts = (
        _decode(scale, journal.of("decode"), best),
        _kernels(journal.of("kernel"), best),
        _blocks(journal.of("block"), best),
        _prefill(journal.of("prefill")),
        _bandwidth(journal.of("bandwidth")),
        _failed(journal.of("failed")),
    )
    return "\n\n".join(part for part in parts if part)


def _decode(scale: Scale, figures: list[Figure], best: float) -> str:
    if not figures or not best:
        return ""
    full = next((one for one in figures if (one["cache"], one["kv_format"]) == ("full", "plain")), None)
    rows = [_decode_row(scale, one, full, best) for one in figures]
    speed = ("cache", "format", "graphs", "slots", "step", "tokens/s", "share of the floor")
    return table((*speed, "gain over full", "plan says", "of the plan", "forward", "sample"), rows)


def _decode_row(scale: Scale, one: Figure, full: Figure | None, best: float) -> tuple[str, ...]:
    rate = one["slots"] / one["step_s"]
    gain = rate / (full["slots"] / full["step_s"]) if full else 0.0
    planned_gain = _planned_gain(scale, one, int(best))
    return (
        "full" if one["cache"] == "full" else f"{one['cache']} {one['budget']:,}",
        one["kv_format"],
        one["backend"],
        f"{one['slots']} x {one['live']:,}",
        f"{one['step_s'] * 1e3:.2f} ms",
        f"{rate:,.0f}",
        f"{one['need_bytes'] / best / one['step_s']:.0%}",
        f"{gain:.2f}x" if full else "-",
        f"{planned_gain:.2f}x",
        f"{gain / planned_gain:.0%}" if full else "-",
        f"{one['forward_s'] * 1e3:.2f} ms",
        f"{one['sample_s'] * 1e3:.2f} ms",
    )


def _planned_gain(scale: Scale, one: Figure, bandwidth: int) -> float:
    """Return the planned throughput of a cache over that of the full plain one, each with the slots that fit."""
    full = planned(scale, one["budget"], bandwidth)["full"].tokens_per_second
    own = planned(scale, one["budget"], bandwidth, one["kv_format"])[one["cache"]].tokens_per_second
    return own / full if full and own else float("nan")


def _kernels(figures: list[Figure], best: float) -> str:
    """Return the table of the operator's default tiling and the fastest tiling, for each cache."""
    rows = []
    for budget in dict.fromkeys(one["budget"] for one in figures):
        of_budget = [one for one in figures if one["budget"] == budget]
        fastest = min(of_budget, key=lambda one: float(one["s"]))
        rows += [
            (
                f"{one['slots']} x {budget:,}",
                one["cut"],
                f"{one['s'] * 1e6:,.0f} us",
                f"{one['rate'] / 1e9:,.0f} GB/s",
                f"{one['rate'] / best:.0%}",
            )
            for one in {id(one): one for one in (of_budget[0], fastest)}.values()
        ]
    return table(("decode attention, one layer", "cut", "time", "reads", "of the best rate"), rows) if rows else ""


def _blocks(figures: list[Figure], best: float) -> str:
    rows = [
        (
            one["part"],
            f"{one['slots']:,}" + (f" x {one['live']:,}" if "live" in one else ""),
            f"{one['s'] * 1e6:,.0f} us",
            f"{one['rate'] / 1e9:,.0f} GB/s",
            f"{one['rate'] / best:.0%}",
            f"{one['operations'] / one['s'] / 1e12:.1f}",
        )
        for one in figures
    ]
    return table(("one layer", "rows", "time", "reads", "of the best rate", "TFLOP/s"), rows) if rows and best else ""


def _prefill(figures: list[Figure]) -> str:
    rows = [
        (
            f"{one['tokens']:,}",
            f"{one['chunk']:,}",
            one["backend"],
            f"{one['s']:.2f} s",
            f"{one['tokens'] / one['s']:,.0f}",
            f"{one['operations'] / one['s'] / 1e12:.2f}",
            f"{one['compress_s'] * 1e3:.1f} ms",
        )
        for one in figures
    ]
    head = ("prompt", "chunk", "graphs", "prefill", "tokens/s", "TFLOP/s", "compress, insert")
    return table(head, rows) if rows else ""


def _bandwidth(figures: list[Figure]) -> str:
    rows = [(one["way"], f"{one['rate'] / 1e9:,.0f} GB/s") for one in figures]
    return table(("bandwidth", "rate"), rows) if rows else ""


def _failed(figures: list[Figure]) -> str:
    return "\n".join(f"Failed: {one['part']}: {one['why'].splitlines()[-1] if one['why'] else '?'}" for one in figures)
