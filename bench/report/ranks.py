"""ranks: two ranks beside one process, and their answers, and what a sum over ranks takes."""

from collections.abc import Sequence

from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest, table


def ranks(rows: Sequence[ResultRow]) -> str:
    """Return the tables of steps, exchanges and answers."""
    decode = newest(figures(rows, "ranks", part="decode"), "model", "machine", "slots")
    exchange = newest(figures(rows, "ranks", part="exchange"), "machine", "ranks")
    answers = newest(figures(rows, "ranks", part="answers"), "model", "machine", "dtype")
    tables = (
        table(("model", "machine", "slots", *HEAD), list(map(_decode, decode))),
        table(("model", "machine", "dtype", *ANSWERED), list(map(_answers, answers))),
        table(("machine", "ranks", "sum of 2,048 float32, shared memory", "gloo"), list(map(_exchange, exchange))),
    )
    return "\n\n".join(tables)


ANSWERED = ("greedy answers of 2 ranks that equal one process's", "tokens before the first other one")
HEAD = ("step, one process with 2 threads", "2 ranks with a thread each", "ratio", "prefill of 2k, ratio")


def _decode(one: ResultRow) -> tuple[str, ...]:
    steps = (f"{1e3 * one[f'step_{name}_s']:.2f} ms" for name in ("process", "ranks"))
    ratios = (f"{one[f'{what}_ratio']:.2f}" for what in ("step", "prefill"))
    return (MODELS[one["model"]], MACHINES[one["machine"]], f"{one['slots']}", *steps, *ratios)


def _answers(one: ResultRow) -> tuple[str, ...]:
    shares = (f"{one[f'equal_{what}']:.0f} of {one[what]:.0f}" for what in ("answers", "tokens"))
    return (MODELS[one["model"]], MACHINES[one["machine"]], one["dtype"], *shares)


def _exchange(one: ResultRow) -> tuple[str, ...]:
    return (
        MACHINES[one["machine"]],
        f"{one['ranks']}",
        *(f"{1e6 * one[name]:,.0f} us" for name in ("memory_s", "gloo_s")),
    )
