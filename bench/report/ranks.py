"""ranks: two ranks beside one process, and what a sum over ranks takes."""

from collections.abc import Sequence

from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest, table


def ranks(rows: Sequence[ResultRow]) -> str:
    """Return both tables."""
    decode = newest(figures(rows, "ranks", part="decode"), "model", "machine", "slots")
    exchange = newest(figures(rows, "ranks", part="exchange"), "machine", "ranks")
    return f"{table(('model', 'machine', 'slots', *HEAD), list(map(_decode, decode)))}\n\n" + table(
        ("machine", "ranks", "sum of 2,048 float32, shared memory", "gloo"), list(map(_exchange, exchange))
    )


HEAD = ("step, one process with 2 threads", "2 ranks with a thread each", "ratio", "prefill of 2k, ratio")


def _decode(one: ResultRow) -> tuple[str, ...]:
    steps = (f"{1e3 * one[f'step_{name}_s']:.2f} ms" for name in ("process", "ranks"))
    ratios = (f"{one[f'{what}_ratio']:.2f}" for what in ("step", "prefill"))
    return (MODELS[one["model"]], MACHINES[one["machine"]], f"{one['slots']}", *steps, *ratios)


def _exchange(one: ResultRow) -> tuple[str, ...]:
    return (
        MACHINES[one["machine"]],
        f"{one['ranks']}",
        *(f"{1e6 * one[name]:,.0f} us" for name in ("memory_s", "gloo_s")),
    )
