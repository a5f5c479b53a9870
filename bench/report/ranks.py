"""ranks: two ranks beside one process, what a sum over ranks takes, and the answers of ranks."""

from collections.abc import Sequence

from bench.report.machine import machine_table
from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest


def ranks(rows: Sequence[ResultRow]) -> str:
    """Return the tables of steps and of sums."""
    decode = newest(figures(rows, "ranks", part="decode"), "model", "machine", "slots")
    exchange = newest(figures(rows, "ranks", part="exchange"), "machine", "ranks")
    steps = machine_table(("model", "machine", "slots", *HEAD), list(map(_decode, decode)))
    sums = machine_table(("machine", "ranks", *SUMS), list(map(_exchange, exchange)))
    return f"{steps}\n\n{sums}"


def rank_answers(rows: Sequence[ResultRow]) -> str:
    """Return the table of how many answers and tokens of two ranks equal those of one process."""
    answers = newest(figures(rows, "ranks", part="answers"), "model", "machine", "dtype")
    return machine_table(("model", "machine", "dtype", *ANSWERED), list(map(_answers, answers)))


ANSWERED = ("greedy answers of 2 ranks that equal one process's", "tokens before the first other one")
SUMS = ("sum of 2,048 float32, shared memory", "gloo")
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
