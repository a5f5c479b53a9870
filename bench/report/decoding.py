"""decoding: what speculation and 8-bit slots gain."""

from collections.abc import Sequence

from bench.report.speed import MACHINES, MODELS
from bench.results import Row, figures, table


def speculation(rows: Sequence[Row]) -> str:
    """Throughput of one request with drafts over without, by text and temperature."""
    lines = [
        (
            MODELS[one["model"]],
            MACHINES[one["machine"]],
            one["text"],
            one["temperature"],
            f"{one['drafts']}",
            f"{one['per_pass']:.2f}",
            f"{one['accepted']:.0%}",
            f"{one['speedup']:.2f}x",
        )
        for one in figures(rows, "speculation")
    ]
    head = ("model", "machine", "text", "temperature", "`--speculate`", "tokens per pass", "drafts kept", "throughput")
    return table(head, lines)


def kv_format(rows: Sequence[Row]) -> str:
    """8-bit slots beside 16-bit slots."""
    lines = [
        (
            MODELS[one["model"]],
            MACHINES[one["machine"]],
            one["format"],
            f"{one['entry_bytes']:,}",
            f"{1e3 * one['attend_s']:.2f} ms",
            f"{one['attend_ratio']:.2f}x",
            f"{one['perplexity']:.3f}",
            f"{one['more']:+.2%}",
        )
        for one in figures(rows, "kv_format")
    ]
    head = ("model", "machine", "`--kv-format`", "bytes per entry", "attention", "faster by", "perplexity", "more")
    return table(head, lines)
