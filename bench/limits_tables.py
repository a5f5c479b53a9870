"""limits_tables: the figures of `bench.limits` as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.results import table


def speed_table(figures: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            one["model"],
            one["weights"],
            "a step" if one["what"] == "decode" else f"a prompt of {one['prompt']:,}",
            f"{one['slots']}",
            f"{one['need_bytes'] / 1e9:.2f} GB",
            f"{one['need_operations'] / 1e9:,.1f} GFLOP",
            f"{1e3 * one['share'] * one['seconds']:,.1f} ms",
            f"{1e3 * one['seconds']:,.1f} ms",
            f"{one['share']:.0%}",
        )
        for one in figures
        if one["kind"] == "speed"
    ]
    return table(("model", "weights", "what", "slots", "bytes", "operations", "floor", "taken", "of the floor"), rows)


def compression_table(figures: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            one["model"],
            f"{one['prompt']:,}",
            f"{one['kept']:,}",
            *(f"{1e3 * one[name]:.1f} ms" for name in ("score_s", "compress_s", "insert_s")),
            f"{one['of_prefill']:.2%}",
            f"{1e3 * one['per_1k_s']:.1f} ms",
        )
        for one in figures
        if one["kind"] == "compression"
    ]
    head = (
        "model",
        "prompt",
        "kept",
        "score",
        "compress",
        "insert",
        "score / prefill",
        "compress and insert per 1k kept",
    )
    return table(head, rows)


def growth_table(figures: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            one["model"],
            f"{one['prompt']:,}",
            f"{one['slots']} of {one['budget']:,}",
            f"{one['step_bytes']:,.0f}",
            f"{1e3 * one['step_s']:.1f} ms",
            f"{one['over_shortest']:.3f}",
        )
        for one in figures
        if one["kind"] == "growth"
    ]
    return table(("model", "prompt", "slots", "bytes per step", "step", "over the shortest prompt's"), rows)
