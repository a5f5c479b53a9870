"""kv_rotation: what encodings of keys and values cost, and int4 without its rotation."""

from collections.abc import Sequence

from bench.report.speed import MODELS
from bench.results import ResultRow, figures, newest, table


def kv_rotation(rows: Sequence[ResultRow]) -> str:
    """Return the table of perplexity and divergence of int4, from the newest run of each model."""
    lines = [
        (
            MODELS[one["model"]],
            one["encoding"],
            f"{one['more']:+.2%} ± {one['more_error']:.2%}",
            f"{1e3 * one['divergence']:.2f}",
        )
        for one in newest(figures(rows, "kv_rotation"), "model")
        if one["encoding"] in ("int4", "int4, not rotated")
    ]
    return table(("model", "keys and values in", "perplexity", "divergence"), lines)
