"""faults: what was tried against a server, and what came of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from bench.report.machine import MACHINES, machine_table
from bench.results import ResultRow, figures, newest

MIN = 60


def faults(rows: Sequence[ResultRow]) -> str:
    """Return a row for each trial and kind of machine: its newest run, and of that the worst case."""
    lines = [
        (trial, told(one), MACHINES[one["machine"]], f"`python -m bench.{bench}`")
        for bench, (trial, told) in TRIALS.items()
        for one in _worst(newest(figures(rows, bench), "machine"))
    ]
    return machine_table(("trial", "result", "machine", "command"), [*lines, *_fuzzed(rows)])


def _worst(found: Sequence[ResultRow]) -> list[ResultRow]:
    """Return one figure for each machine: the slowest, where hostile clients were there."""
    slowest = sorted(found, key=lambda one: float(one.get("slowest_s", 0)))
    return list({one["machine"]: one for one in slowest if one.get("strangers") != "none"}.values())


def _overload(one: ResultRow) -> str:
    verdict = "all checks passed" if one["passed"] else "**a check failed**"
    bound = 1.2 * (one["step_s"] + one["chunk_s"])
    return (
        f"{verdict}: {one['sent_requests']:,.0f} requests in {one['minutes']:g} minutes, "
        f"{one['refused_share']:.0%} refused, inter-token p99 {1e3 * one['itl_p99_s']:.0f} ms "
        f"(bound {1e3 * bound:.0f}), HTTP {one['http_bytes'] / 1e6:.0f} MB"
    )


def _kill(one: ResultRow) -> str:
    killed = (
        f"{one['failed_requests']:,.0f} requests ended with an error, {one['cut_requests']:.0f} silently, "
        f"{one['hung_requests']:.0f} hung; answers again after {one['back_s']:.1f} s, "
        f"at most {one['slowest_back_s']:.1f} s"
    )
    if "drained_requests" not in one:
        return killed
    return f"{killed}. SIGTERM: {one['drained_requests']:.0f} accepted finished, {one['lost_requests']:.0f} did not"


def _strangers(one: ResultRow) -> str:
    return f"HTTP process {one['rss_bytes'] / 1e6:,.0f} MB; others' slowest answer {1e3 * one['slowest_s']:.0f} ms"


Trial = tuple[str, Callable[[ResultRow], str]]
TRIALS: Mapping[str, Trial] = {
    "overload": (
        "twice the sustainable rate, 64 clients of which 20% leave, 5% malformed; greedy answers compared",
        _overload,
    ),
    "kill": ("kill -9 of the engine under load, 20 times, then SIGTERM", _kill),
    "strangers": ("500 slow senders and 64 bodies of 64 MiB", _strangers),
}


def _fuzzed(rows: Sequence[ResultRow]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kind of machine: the newest run of each target, added up."""
    found = newest(figures(rows, "fuzz"), "machine", "target")
    for machine in dict.fromkeys(one["machine"] for one in found):
        runs = sorted((one for one in found if one["machine"] == machine), key=lambda one: str(one["target"]))
        kinds = ", ".join(f"{one['target']} {one['cases']:,.0f}" for one in runs)
        result = (
            f"{sum(one['findings'] for one in runs):.0f} findings; "
            f"slowest {max(one['slowest_s'] for one in runs):.1f} s, "
            f"largest {max(one['peak_bytes'] for one in runs) / 1e6:,.0f} MB"
        )
        minutes = min(one["fuzzed_s"] for one in runs) / MIN
        trial = f"fuzzing, {minutes:.0f} minutes each; inputs: {kinds}"
        yield trial, result, MACHINES[machine], "`python -m bench.fuzz`"
