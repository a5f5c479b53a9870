"""decoding: the gains from speculation and from slots in fewer bits."""

from collections.abc import Sequence

from bench.report.machine import machine_table
from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest, table


def speculation(rows: Sequence[ResultRow]) -> str:
    """Return the table of throughput with drafts over throughput without, by text, with a cell for all temperatures."""
    texts: dict[tuple[str, str], list[ResultRow]] = {}
    for one in figures(rows, "speculation"):
        texts.setdefault((MODELS[one["model"]], one["text"]), []).append(one)
    temperatures = ", ".join(dict.fromkeys(str(one["temperature"]) for found in texts.values() for one in found))
    lines = [
        (
            *text,
            ", ".join(f"{one['per_pass']:.2f}" for one in found),
            ", ".join(f"{one['speedup']:.2f}x" for one in found),
        )
        for text, found in texts.items()
    ]
    return table(("model", "text", f"tokens per pass at temperature {temperatures}", "throughput"), lines)


def kv_format(rows: Sequence[ResultRow]) -> str:
    """Return the table that compares formats of slots, from the newest run of each part, model and machine."""
    lines = [
        (
            MODELS[one["model"]],
            MACHINES[one["machine"]],
            one["format"],
            f"{one['entry_bytes']:,}",
            f"{1e3 * one['attend_s']:.2f} ms" if "attend_s" in one else "",
            f"{one['attend_ratio']:.2f}x" if "attend_ratio" in one else "",
            f"{one['more']:+.2%}" if "more" in one else "",
        )
        for one in _parts_joined(figures(rows, "kv_format"))
    ]
    head = ("model", "machine", "`--kv-format`", "bytes per entry", "attention", "faster by", "perplexity")
    return machine_table(head, lines)


def _parts_joined(measured: Sequence[ResultRow]) -> list[ResultRow]:
    """Return a figure for each case, joined from the newest run of speed and that of perplexity."""
    joined: dict[tuple[str, ...], ResultRow] = {}
    for part in ("attend_s", "more"):
        for one in newest([each for each in measured if part in each], "model", "machine"):
            joined.setdefault((one["model"], one["machine"], one["format"]), {}).update(one)
    return list(joined.values())
