"""faults: what was tried against a server, and what came of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

from bench.report.machine import MACHINES, machine_table
from bench.results import ResultRow, figures, newest

MIN = 60


def faults(rows: Sequence[ResultRow]) -> str:
    """Return a row for each trial and kind of machine: its newest run, and of that the worst case."""
    lines = [
        (trial, told(figure), MACHINES[figure["machine"]], f"`python -m bench.{bench}`")
        for bench, (trial, told) in TRIALS.items()
        for figure in _worst(newest(figures(rows, bench), "machine"))
    ]
    return machine_table(("trial", "result", "machine", "command"), [*lines, *_fuzzed(rows)])


def _worst(runs: Sequence[ResultRow]) -> list[ResultRow]:
    """Return one figure for each machine: that with the longest gap between two tokens, if gaps were measured."""
    slowest = sorted(runs, key=lambda figure: float(figure.get("gap_s", 0)))
    return list({figure["machine"]: figure for figure in slowest}.values())


def _overload(figure: ResultRow) -> str:
    verdict = "all checks passed" if figure["passed"] else "**a check failed**"
    bound = 1.2 * (figure["step_s"] + figure["chunk_s"])
    return (
        f"{verdict}: {figure['sent_requests']:,.0f} requests in {figure['minutes']:g} minutes, "
        f"{figure['refused_share']:.0%} refused, inter-token p99 {1e3 * figure['itl_p99_s']:.0f} ms "
        f"(bound {1e3 * bound:.0f}), HTTP {figure['http_bytes'] / 1e6:.0f} MB"
    )


def _kill(run: ResultRow) -> str:
    killed = (
        f"{run['failed_requests']:,.0f} requests ended with an error, {run['cut_requests']:.0f} silently, "
        f"{run['hung_requests']:.0f} hung; answers again after {run['back_s']:.1f} s, "
        f"at most {run['slowest_back_s']:.1f} s"
    )
    if "drained_requests" not in run:
        return killed
    return f"{killed}. SIGTERM: {run['drained_requests']:.0f} accepted finished, {run['lost_requests']:.0f} did not"


def _limits(run: ResultRow) -> str:
    return (
        f"longest gap between two tokens of the small one {1e3 * run['gap_s']:.0f} ms ({run['kind']}), allowed "
        f"{1e3 * run['allowed_s']:.0f} ms; HTTP process {run['http_bytes'] / 1e6:,.0f} MB"
    )


Trial = tuple[str, Callable[[ResultRow], str]]
TRIALS: Mapping[str, Trial] = {
    "overload": (
        "twice the sustainable rate, 64 clients of which 20% leave, 5% malformed; greedy answers compared",
        _overload,
    ),
    "kill": ("kill -9 of the engine under load, 20 times, then SIGTERM", _kill),
    "limits_of_requests": (
        "the largest requests of each kind, 500 slow senders, and 64 bodies of 64 MiB, each beside a small request",
        _limits,
    ),
}


def _fuzzed(rows: Sequence[ResultRow]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kind of machine: the newest run of each target, added up."""
    newest_runs = sorted(newest(figures(rows, "fuzz"), "machine", "target"), key=itemgetter("target"))
    for machine in dict.fromkeys(run["machine"] for run in newest_runs):
        runs = [run for run in newest_runs if run["machine"] == machine]
        inputs = ", ".join(f"{run['target']} {run['cases']:,.0f}" for run in runs)
        result = (
            f"{sum(run['findings'] for run in runs):.0f} findings; "
            f"slowest {max(run['slowest_s'] for run in runs):.1f} s, "
            f"largest {max(run['peak_bytes'] for run in runs) / 1e6:,.0f} MB"
        )
        minutes = min(run["fuzzed_s"] for run in runs) / MIN
        trial = f"fuzzing, {minutes:.0f} minutes each; inputs: {inputs}"
        yield trial, result, MACHINES[machine], "`python -m bench.fuzz`"
